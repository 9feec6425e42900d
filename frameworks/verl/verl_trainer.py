"""verl's synchronous trainer, whose rounds are those of a plan: `trainer.v1.trainer_mode=rlplan`.

A step's rounds run while verl samples its replay buffer, so verl's `timing_s/gen` is their time. What the queue holds
afterwards is what the step trains. The schedule's state is saved with each of verl's checkpoints, before verl names the
checkpoint the latest; a run that is resumed goes on with the prompts that its checkpoint had deferred.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from ...plans.yaml.errors import InputError
from ...rounds.machines.round import Round
from .verl_rounds import STATE, TrainedData, VerlRounds, divide_by_constants, name_parts, plan_of

logger = logging.getLogger(__name__)

_TRAIN = "train"


class RoundBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's replay buffer; for training it holds what the rounds of a step have trained, and no more."""

    run_rounds: Callable[[], tuple[list[TrainedData], dict[str, float]]] | None = None
    """Set by the trainer."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """The groups of a step, `batch_size` prompts at most; all else of the step is removed from verl's queue."""
        if partition_id != _TRAIN:
            return super().sample(global_steps, partition_id, batch_size)  # type: ignore[no-any-return]
        if self.run_rounds is None:
            raise InputError("RoundBuffer needs trainer.v1.trainer_mode=rlplan")
        trained, figures = self.run_rounds()
        tags: dict[str, dict[str, Any]] = (tq.kv_list(_TRAIN) or {}).get(_TRAIN, {})
        keys = [key for group in trained for key in group.keys]
        if missing := [key for key in keys if key not in tags]:
            raise RuntimeError(f"verl's queue lost {len(missing)} trained samples, {missing[0]} first")
        if rest := sorted(tags.keys() - set(keys)):
            tq.kv_clear(keys=rest, partition_id=_TRAIN)
        return KVBatchMeta(partition_id=_TRAIN, keys=keys, tags=[tags[key] for key in keys]), figures


@register_trainer("rlplan")
class PlannedTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Trains rounds of the plan at `trainer.v1.rlplan.plan`. Raises InputError if the configuration does not fit."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            self.planned = plan_of(config)
            name_parts(config)
            if changed := divide_by_constants(config, self.planned):
                logger.warning("rlplan: the loss divided by what a round holds; it is set to constants: %s", changed)
        super().__init__(config)
        # By this name verl would save and issue again what its queue holds; ours is empty between steps.
        self.trainer_mode = "sync"
        self.rounds: VerlRounds | None = None
        self._rows: dict[str, dict[str, Any]] = {}

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        seed = self.config.data.get("seed", None)
        self.rounds = VerlRounds(self.planned, len(self.train_dataset), 1 if seed is None else int(seed))
        self.replay_buffer.run_rounds = self._run_rounds

    def get_llm_client(self) -> Any:
        """The client that verl's workers ask servers by."""
        from .verl_workers import CutoffClient  # where a worker imports that module first, it leads here

        return self.llm_server_manager.get_client(client_cls=CutoffClient)

    # -- a step --------------------------------------------------------------------------------------------------------

    def prepare_step(self) -> dict[str, float]:
        """Nothing is issued ahead: the rounds run when the replay buffer is sampled."""
        return {}

    def _run_rounds(self) -> tuple[list[TrainedData], dict[str, float]]:
        assert self.rounds is not None
        self._rows = {}
        return self.rounds.step(self.global_steps, self.total_training_steps - self.global_steps + 1, self._drive)

    def _drive(self, machine: Round, uid: Callable[[str, int], str]) -> None:
        self.agent_loop_manager.run_round(machine, uid, self._row)

    def _row(self, prompt: str) -> dict[str, Any]:
        """The fields of a row as verl's workers get them."""
        if prompt not in self._rows:
            batch = collate_fn([self.train_dataset[int(prompt)]])
            if "__rollout_n__" in batch or "agent_name" in batch:
                raise InputError(
                    "rows with a number of samples or an agent of their own (__rollout_n__, agent_name) do not go "
                    "with trainer.v1.trainer_mode=rlplan: leave these columns out"
                )
            self._rows[prompt] = {name: column[0] for name, column in batch.items()}
        return self._rows[prompt] | {"global_steps": self.global_steps}

    def on_sample_end(self) -> None:
        """Engines sleep; what a worker that died had asked of them is aborted before."""
        if self.agent_loop_manager.restarts:
            self.checkpoint_manager.abort_replicas()
        super().on_sample_end()

    def on_step_end(self) -> None:
        """New weights reach the engines."""
        super().on_step_end()
        if self.agent_loop_manager.restarts:
            self.checkpoint_manager.resume_generation_replicas()
            self.agent_loop_manager.restarts = 0

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        assert self.rounds is not None
        self.rounds.save(Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}")
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        assert self.rounds is not None
        if self.global_steps == 0:
            return
        settings = self.config.trainer
        folder = Path(settings.default_local_dir) / f"global_step_{self.global_steps}"
        if settings.resume_mode == "resume_path":
            folder = Path(settings.resume_from_path)
        self.rounds.load(folder)
        logger.info("rlplan: resumed from %s, %d prompts deferred", folder / STATE, len(self.rounds.schedule.deferred))
