"""Tables of keys: what exists, what does nothing, what a wrong name may mean."""

import pytest

from rlplan.frameworks.keys.key_table import VERSIONS, key_table


@pytest.mark.parametrize(
    ("framework", "key", "default"),
    [
        ("verl", "actor_rollout_ref.rollout.gpu_memory_utilization", 0.5),
        ("verl", "actor_rollout_ref.actor.megatron.use_distributed_optimizer", True),
        ("trl", "gradient_checkpointing", True),
        ("trl", "vllm_gpu_memory_utilization", 0.3),
        ("trl", "dtype", "float32"),
        ("slime", "--num-gpus-per-node", 8),
        ("slime", "--tensor-model-parallel-size", 1),
        ("slime", "--sglang-mem-fraction-static", None),
        ("vime", "--vllm-gpu-memory-utilization", 0.92),
        ("openrlhf", "--vllm.gpu_memory_utilization", 0.95),
        ("openrlhf", "--actor.adam.lr", 1e-6),
        ("skyrl", "generator.inference_engine.gpu_memory_utilization", 0.8),
        ("skyrl", "trainer.policy.optimizer_config.lr", 1e-6),
    ],
)
def test_defaults_are_those_of_the_packages(framework, key, default):
    assert key_table(framework).default(key) == default


def test_every_framework_has_a_table_and_no_dead_key_without_reason():
    for framework in VERSIONS:
        table = key_table(framework)
        assert len(table.names()) > 150
        assert all(table.dead(name) != "" for name in table.names())
    assert key_table("skyrl", "0.3.0").default("trainer.train_batch_size") == 1024


def test_sections_and_open_sections_are_known():
    verl = key_table("verl")
    for key in ("actor_rollout_ref.rollout", "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config",
                "actor_rollout_ref.rollout.agent.agent_loop_manager_class"):  # fmt: skip
        assert key in verl
    assert "actor_rollout_ref.rollout.max_seqs" not in verl
    assert verl.get("actor_rollout_ref.rollout.agent.agent_loop_manager_class").note == "+"
    assert verl.nearest("actor_rollout_ref.rollout.max_num_seq") == "actor_rollout_ref.rollout.max_num_seqs"
    assert verl.nearest("rollout.gpu_memory_utilization").endswith("rollout.gpu_memory_utilization")
