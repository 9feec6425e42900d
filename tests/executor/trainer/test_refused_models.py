"""Models and sizes that a trainer refuses before it loads anything."""

import pytest
import torch
from transformers import AutoConfig

from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.trainer.policy.rank_mesh import RankMesh

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}


@pytest.mark.parametrize(
    ("family", "changes", "ranks", "fault"),
    [
        ("gemma", {"head_dim": 8}, {}, "the family gemma, and the executor trains only llama"),
        ("llama", {}, {"tp": 4}, "tp is 4, which does not divide 4 attention and 2 key-value heads"),
        ("llama", {}, {"sp": 4}, "tp x sp 4 does not divide 4 attention and 2 key-value heads"),
        ("qwen2", {"vocab_size": 95}, {"tp": 2}, "tp is 2, which does not divide a vocabulary of 95"),
        ("qwen3", {"intermediate_size": 49, "head_dim": 8}, {"tp": 2}, "does not divide an intermediate width of 49"),
        ("qwen3_moe", EXPERTS, {"tp": 2}, "tp is 2, and the model is a mixture of experts"),
        ("qwen3_moe", EXPERTS, {"dp": 3}, "dp x sp 3 leaves ranks without any of 4 experts"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name_before_it_is_loaded(tmp_path, family, changes, ranks, fault):
    AutoConfig.for_model(family, **(SIZES | changes)).save_pretrained(tmp_path)  # there are no weights
    with pytest.raises(ValueError, match="cannot be trained") as refused:
        load_policy(str(tmp_path), "float32", torch.device("cpu"), RankMesh(**ranks))
    assert fault in str(refused.value)
