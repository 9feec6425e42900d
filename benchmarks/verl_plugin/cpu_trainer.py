"""A life of verl's trainer, from its start or a checkpoint until its last step or its death.

    python -m benchmarks.verl_plugin.cpu_trainer FOLDER [--kills N] [--seed S] [--server fake|vllm]

Real: verl's configuration, its loaders of plug-ins, samplers and managers, its loop `fit` with its checkpoints, data
set, agent loops, reward workers, load balancer, padding, advantages and TransferQueue. Not real: the update of the
weights, in whose place `trained.jsonl` gets what verl's queue holds for it, and, if so asked, the servers. A server or
a worker of agent loops is killed in some rounds, while they run.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

import click

STEPS, PROMPTS, SAMPLES, CAP, ROWS = 200, 8, 4, 192, 320
TRAINED = "trained.jsonl"


def reward(data_source: str, solution_str: str, ground_truth: str, **ignored: Any) -> float:
    """The reward that verl's workers compute: whether the number of words is even."""
    return float(len(solution_str.split()) % 2 == 0)


def configuration(folder: Path, steps: int) -> Any:
    """verl's configuration, composed from its own files."""
    from hydra import compose, initialize_config_module

    rollout = "actor_rollout_ref.rollout"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                "trainer.v1.trainer_mode=rlplan",
                f"+trainer.v1.rlplan.plan={folder / 'plan.yaml'}",
                f"trainer.default_local_dir={folder / 'checkpoints'}",
                f"trainer.total_training_steps={steps}",
                "trainer.total_epochs=1000",
                "trainer.save_freq=1",
                "trainer.test_freq=-1",
                "trainer.val_before_train=false",
                "trainer.logger=[console]",
                "trainer.device=cpu",
                f"data.train_files={folder / 'rows.parquet'}",
                f"data.val_files={folder / 'rows.parquet'}",
                f"data.train_batch_size={PROMPTS}",
                "data.max_prompt_length=16",
                f"data.max_response_length={CAP}",
                "data.dataloader_num_workers=0",
                "data.filter_overlong_prompts=false",
                "data.seed=1",
                f"actor_rollout_ref.model.path={folder / 'model'}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
                "algorithm.adv_estimator=grpo",
                "algorithm.rollout_correction.bypass_mode=true",
                f"{rollout}.calculate_log_probs=true",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
                f"{rollout}.name=vllm",
                f"{rollout}.n={SAMPLES}",
                f"{rollout}.nnodes=1",
                f"{rollout}.n_gpus_per_node=2",
                f"{rollout}.tensor_model_parallel_size=1",
                f"{rollout}.agent.num_workers=2",
                f"+{rollout}.enable_sleep_mode=false",
                f"{rollout}.enforce_eager=true",
                f"{rollout}.dtype=float32",
                f"{rollout}.load_format=auto",
                f"{rollout}.max_model_len=256",
                f"{rollout}.max_num_seqs=128",
                f"{rollout}.gpu_memory_utilization=0.02",
                "reward.num_workers=1",
                f"reward.custom_reward_function.path={__file__}",
                "reward.custom_reward_function.name=reward",
                "transfer_queue.enable=true",
                "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            ],
        )


class Worker:
    """What verl's trainer asks of its group of training workers, without any."""

    _dispatch_info = {"actor": [0]}  # noqa: RUF012 - verl's name: one data-parallel rank

    def save_checkpoint(self, path: str, *ignored: Any, **more: Any) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, *ignored: Any, **more: Any) -> None:
        """There are no weights."""


class Engines:
    """What verl's trainer asks of its manager of weights; it looks whether requests are open where engines sleep."""

    def __init__(self, servers: Any) -> None:
        self.servers, self.open_at_sleep, self.aborted = servers, 0, 0

    def sleep_replicas(self) -> None:
        self.open_at_sleep += self.servers.unfinished()

    def abort_replicas(self) -> None:
        self.aborted += 1

    def update_weights(self, *ignored: Any) -> None:
        """There are no weights."""

    resume_generation_replicas = update_weights


def trainer_class(folder: Path, steps: int, kills: int, seed: int, server: str) -> Any:
    """The trainer that verl has registered as `rlplan`, on parts without GPUs."""
    import ray
    import transfer_queue as tq
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.trainer.ppo.v1 import get_trainer_cls

    from .fake_server import CpuServerManager, Replica

    Replica.server = server

    class CpuTrainer(get_trainer_cls("rlplan")):  # type: ignore[misc]
        """Kills a part in some rounds, and writes down what is trained."""

        def _setup(self) -> None:
            self._init_tokenizer()
            self._init_dataloader()
            self._init_dump_executor()
            self.actor_rollout_wg = Worker()
            self.teacher_model_manager = None
            self.reward_loop_manager = RewardLoopManager(config=self.config)
            self.llm_server_manager = CpuServerManager.create(config=self.config)
            self.checkpoint_manager = Engines(self.llm_server_manager)
            self._random = random.Random(seed)
            self._strikes = set(self._random.sample(range(2, steps), kills))
            self._load_checkpoint()
            self._write({"event": "start", "step": self.global_steps, "deferred": self.rounds.schedule.deferred})

        def _write(self, record: dict[str, Any]) -> None:
            with (folder / TRAINED).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

        def on_sample_begin(self) -> None:
            self._write({"event": "round", "step": self.global_steps})
            if self.global_steps in self._strikes:
                strike = self._kill_worker if self._random.random() < 0.5 else self._kill_server
                timer = threading.Timer(self._random.uniform(0.005, 0.08), strike)
                timer.daemon = True  # a server that is being replaced as training ends does not hold up the exit
                timer.start()

        def _kill_server(self) -> None:
            step = self.global_steps
            if self.llm_server_manager.kill(self._random.randrange(2)):
                self._write({"event": "kill", "step": step, "what": "server"})

        def _kill_worker(self) -> None:
            workers = self.agent_loop_manager.agent_loop_workers
            ray.kill(workers[self._random.randrange(len(workers))])
            self._write({"event": "kill", "step": self.global_steps, "what": "worker"})

        def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
            self._figures = {name: value for name, value in metrics.items() if name.startswith("rlplan/")}
            return super()._compute_old_log_prob(batch, metrics)

        def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
            names = ["uid", "responses", "extra_info", "rm_scores", "advantages"]
            keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
            data = tq.kv_batch_get(keys, batch.partition_id, names)
            self._write(
                {
                    "event": "trained",
                    "step": self.global_steps,
                    "uids": list(data["uid"]),
                    "rows": [info["index"] for info in data["extra_info"]],
                    "tokens": [len(response) for response in data["responses"]],
                    "rewards": [float(scores.sum()) for scores in data["rm_scores"]],
                    "advantages": [float(values[-1]) for values in data["advantages"]],
                    "padding": len(batch.keys) - len(keys),
                    "queue": sorted(tq.kv_list("train")["train"]) == sorted(batch.keys),
                    "open_at_sleep": self.checkpoint_manager.open_at_sleep,
                    **self._figures,
                }
            )
            return batch

        def _compute_metrics(self, *ignored: Any, **more: Any) -> None:
            """Of updates, which there are none of."""

    return CpuTrainer


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--steps", type=int, default=STEPS)
@click.option("--kills", type=int, default=0)
@click.option("--seed", type=int, default=0)
@click.option("--server", type=click.Choice(["fake", "vllm"]), default="fake")
def main(folder: Path, steps: int, kills: int, seed: int, server: str) -> None:
    """Train until the last step."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.utils.import_utils import load_class_from_fqn

    ray.init(num_cpus=8, include_dashboard=False, logging_level="ERROR")
    config = configuration(folder, steps)
    OmegaConf.resolve(config)
    tq.init(config.transfer_queue)
    trainer = trainer_class(folder, steps, kills, seed, server)(config)
    trainer.init()
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    manager = load_class_from_fqn(name, "AgentLoopManager").create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=None,
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )
    trainer.fit(manager)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
