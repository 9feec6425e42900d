"""A judge's configuration: its engines, what it is asked, how long, and how often again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....plans.files.judge_model import fitting_prompt
from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import RewardJudge
from ...engines.messages import EngineConfig, judge_name
from ...engines.vllm_options import FIXED_CACHE_SHARE, kv_bytes_per_token

SPARE_TOKENS_FACTOR = 2
"""Tokens of the judge's own tokenizer that a token of the policy's may take, where its model has room for so many."""

CACHE_FACTOR = 1.5
"""KV cache of a copy over what its questions hold at their longest: the rubric stays cached between them."""


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """A judge.

    Attributes:
        engines: the copies.
        template: of a question.
        worth: of each verdict, by its text.
        at_once: questions that a copy has at a time.
        deadline_s: seconds for one try of a question.
        retries: further tries.
    """

    engines: tuple[EngineConfig, ...]
    template: str
    worth: Mapping[str, float]
    at_once: int
    deadline_s: float
    retries: int


def judge_config(job: Job, model: str, planned: RewardJudge, pool: Pool, tokenizer: Any) -> JudgeConfig:
    """The judge of a job as its plan has it; `model`: its path, `tokenizer`: its own.

    Raises InputError if the judge's model reads fewer tokens than a question may have, or cannot write a verdict.
    """
    from transformers import AutoConfig

    part = job.reward.judge
    assert part is not None and part.prompt is not None, "a plan with a judge is of a job with one"
    shape = AutoConfig.from_pretrained(model)
    shape = getattr(shape, "text_config", shape)
    most = int(shape.max_position_embeddings)
    prompt = fitting_prompt(job, tokenizer, most, model)
    own = prompt.frame_tokens + prompt.verdict_tokens
    longest = min(most, own + SPARE_TOKENS_FACTOR * job.rollout.longest_tokens)
    token_bytes = kv_bytes_per_token(model, job.model.dtype)
    engine = EngineConfig(
        name="",
        model_path=model,
        dtype=job.model.dtype,
        tp=planned.tp,
        max_model_len=longest,
        max_num_seqs=planned.at_once,
        device=pool.accelerators.kind,
        kv_memory_bytes=int(CACHE_FACTOR * planned.at_once * longest * token_bytes),
        seed=job.algorithm.seed,
        compute_share=planned.share or 1.0,
        memory_share=FIXED_CACHE_SHARE,
        sleeps=False,
    )
    return JudgeConfig(
        engines=tuple(engine.renamed(judge_name(number)) for number in range(planned.instances)),
        template=part.prompt,
        worth=part.worth(),
        at_once=planned.at_once,
        deadline_s=planned.deadline_s or part.deadline_s,
        retries=part.retries,
    )
