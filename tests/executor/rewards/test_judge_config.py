"""A judge's engines follow from job, plan and the judge's own model."""

import pytest

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.levers import RewardJudge
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads

from ...documents import CLUSTER


def job(tokens, **words):
    verdicts = words or {"w1": 1.0, "w2": 0.0}
    judge = {
        "kind": "judge", "model": "m", "prompt": "w1 w2 {prompt} {response}", "verdicts": verdicts, "deadline_s": 9.0
    }  # fmt: skip
    rollout = {
        "prompts_per_step": 4, "samples_per_prompt": 2, "max_prompt_tokens": 8, "max_response_tokens": tokens
    }  # fmt: skip
    return Job.model_validate(
        {
            "rlplan_job": 1, "name": "toy", "model": {"path": "m", "dtype": "float32"}, "data": {"prompts": 9},
            "reward": [{"kind": "math", "deadline_s": 2.0}, judge], "rollout": rollout,
            "algorithm": {"name": "grpo", "learning_rate": 1e-3}, "search": {"tp": [1], "micro_batch_tokens": [4096]},
        }
    )  # fmt: skip


def test_a_judges_engines_have_room_for_its_longest_questions(tiny_model):
    from rlplan.executor.rewards.judge_pool import judge_config
    from rlplan.executor.rollout.prompts import load_tokenizer

    pool = loads(CLUSTER, Cluster).pools["main"]
    tokenizer = load_tokenizer(str(tiny_model))
    planned = RewardJudge(place="beside", instances=2, at_once=4, share=0.2)
    config = judge_config(job(100), str(tiny_model), planned, pool, tokenizer)
    assert [engine.name for engine in config.engines] == ["judge-0", "judge-1"]
    engine = config.engines[0]
    assert (engine.max_num_seqs, engine.compute_share, engine.sleeps) == (4, 0.2, False)
    assert engine.max_model_len >= 2 + 8 + 100
    per_token = 2 * 2 * 2 * 32 * 4  # keys and values of 2 layers with 2 heads of 32, in float32
    assert engine.kv_memory_bytes >= 4 * engine.max_model_len * per_token
    assert (config.deadline_s, config.retries, config.worth) == (9.0, 2, {"w1": 1.0, "w2": 0.0})
    with pytest.raises(InputError, match=r"reads at most 512 tokens, and a question may have \d+"):
        judge_config(job(600), str(tiny_model), planned, pool, tokenizer)
    with pytest.raises(InputError, match="cannot write the verdict 'good'"):
        judge_config(job(100, good=1.0, w2=0.0), str(tiny_model), planned, pool, tokenizer)
