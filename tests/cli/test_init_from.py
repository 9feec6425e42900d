"""`rlplan init --from`: another trainer's configuration becomes a job and a cluster; what is not in them is listed."""

import json

import pytest
from click.testing import CliRunner

from rlplan.cli.init import init_command
from rlplan.plans.schema.algorithm import Algorithm
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.errors import InputError

VERL = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
  data.train_batch_size=128 data.max_prompt_length=512 data.max_response_length=4096 actor_rollout_ref.rollout.n=8 \\
  actor_rollout_ref.actor.optim.lr=3e-6 actor_rollout_ref.actor.clip_ratio_high=0.28 trainer.nnodes=2 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.over_sample_rate=0.2 \\
  actor_rollout_ref.actor.use_kl_loss=True trainer.logger=console
"""
SLIME = """
ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4 \\
  --hf-checkpoint Qwen/Qwen3-8B --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 \\
  --sglang-mem-fraction-static 0.8
"""


def imported(tmp_path, text, *options):
    (tmp_path / "run.sh").write_text(text)
    command = ["--from", str(tmp_path / "run.sh"), str(tmp_path / "job"), *options]
    return CliRunner().invoke(init_command, command, standalone_mode=False)


def test_sizes_lengths_and_rates_are_the_configurations(tmp_path):
    facts = json.loads(imported(tmp_path, VERL, "--json").output)
    job, cluster = load_job(tmp_path / "job" / "job.yaml"), load_cluster(tmp_path / "job" / "cluster.yaml")
    assert (job.rollout.prompts_per_step, job.rollout.samples_per_prompt) == (128, 8)
    assert (job.rollout.max_prompt_tokens, job.rollout.max_response_tokens) == (512, 4096)
    assert (job.algorithm.learning_rate, job.algorithm.clip_high) == (3e-6, 0.28)
    assert job.model.path == "Qwen/Qwen2.5-7B-Instruct" and 2 in job.search.tp
    (pool,) = cluster.pools.values()
    assert (pool.nodes, pool.accelerators.per_node, pool.accelerators.name) == (2, 8, "H100")
    assert facts["framework"] == "verl" and "max_num_seqs" in facts["defaulted"]


def test_what_is_not_taken_is_listed_and_commented(tmp_path):
    facts = json.loads(imported(tmp_path, VERL, "--json").output)
    text = (tmp_path / "job" / "job.yaml").read_text()
    for part in ("which GPU it is", "over_sample_rate", "0.5 updates a step"):
        assert (part in text) == any(part in note for note in facts["not_taken"])
    assert any("nothing reads it" in note for note in facts["not_taken"])
    assert "trainer.logger" in facts["not_read"] and "trainer.logger" in text
    assert not any("optim.lr" in key for key in facts["not_read"])


FLAGS = "actor_rollout_ref.actor."
ALGORITHMS = {
    f"{FLAGS}policy_loss.loss_mode=gspo {FLAGS}clip_ratio_low=3e-4 {FLAGS}clip_ratio_high=4e-4 "
    f"{FLAGS}loss_agg_mode=seq-mean-token-mean {FLAGS}use_kl_loss=False {FLAGS}entropy_coeff=0.001":
        {"name": "gspo", "entropy_bonus": 0.001},
    f"{FLAGS}policy_loss.loss_mode=cispo {FLAGS}clip_ratio_low=10 {FLAGS}clip_ratio_high=0.2 "
    f"{FLAGS}kl_loss_coef=0.02 {FLAGS}kl_loss_type=k2":
        {"name": "cispo", "clip_low": 1.0, "clip_high": 0.2, "kl": {"coefficient": 0.02, "estimator": "k2"}},
    f"algorithm.adv_estimator=reinforce_plus_plus_baseline algorithm.use_kl_in_reward=True {FLAGS}use_kl_loss=False "
    f"algorithm.kl_ctrl.kl_coef=0.05 {FLAGS}clip_ratio_c=5":
        {"name": "reinforce_plus_plus_baseline", "dual_clip": 5.0, "loss_aggregation": "token-mean",
         "kl": {"coefficient": 0.05, "estimator": "k1", "applied_to": "reward"}, "clip_high": 0.28},
}  # fmt: skip


@pytest.mark.parametrize("settings", ALGORITHMS)
def test_the_algorithm_and_its_kl_are_the_configurations(tmp_path, settings):
    imported(tmp_path, VERL.replace("trainer.logger", f"{settings} trainer.logger"))
    algorithm = load_job(tmp_path / "job" / "job.yaml").algorithm
    assert algorithm == Algorithm.model_validate(
        {"learning_rate": 3e-6, "loss_aggregation": algorithm.loss_aggregation, **ALGORITHMS[settings]}
    )


def test_a_kl_that_no_job_may_have_is_left_out_and_noted(tmp_path):
    facts = json.loads(
        imported(tmp_path, VERL.replace("trainer.l", f"{FLAGS}kl_loss_type=kl trainer.l"), "--json").output
    )
    assert load_job(tmp_path / "job" / "job.yaml").algorithm.kl is None
    assert any("KL to a reference, k1 in the loss" in note for note in facts["not_taken"])


def test_the_user_says_which_machines_and_model(tmp_path):
    imported(tmp_path, VERL, "--gpus", "1x8xH20", "--model", "Qwen2.5-14B")
    job, cluster = load_job(tmp_path / "job" / "job.yaml"), load_cluster(tmp_path / "job" / "cluster.yaml")
    assert job.model.path == "Qwen/Qwen2.5-14B"
    assert next(iter(cluster.pools.values())).accelerators.name == "H20"


def test_sides_apart_become_two_pools(tmp_path):
    imported(tmp_path, SLIME)
    job, cluster = load_job(tmp_path / "job" / "job.yaml"), load_cluster(tmp_path / "job" / "cluster.yaml")
    assert {name: pool.accelerators_total for name, pool in cluster.pools.items()} == {"rollout": 4, "train": 4}
    assert job.placement is not None and job.placement.train_pool == "train"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VERL.replace("Qwen/Qwen2.5-7B-Instruct", "/data/our-model"), "say the model with --model"),
        (VERL.replace("Qwen2.5-7B-Instruct", "DeepSeek-R1"), "does not hold"),
        ("echo 1", "no command of it starts RL training"),
    ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path, text, message):
    error = imported(tmp_path, text).exception
    assert isinstance(error, InputError) and len(error.lines()) == 1
    assert message in str(error) and not (tmp_path / "job").exists()
