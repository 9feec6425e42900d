"""What clashes in a set-up beside memory: layouts, units of batches, engines' room, lengths, keys that do nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...plans.facts.model_shape import undivided
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from ...profiles.hardware import Gpu
from ...profiles.laws.train_law import layout_faults
from ..lengths.table_lengths import named_lengths
from .rank_states import update_layout
from .setup_memory import capacity_bytes, engine_step_bytes, engine_weight_bytes, mean_sample_tokens, memory_share

Changes = Mapping[str, Any]
"""Attributes of a TrainerSetup and their new values."""


@dataclass(frozen=True)
class DoctorFinding:
    """One thing that the doctor found.

    Attributes:
        rule: its name.
        message: what is wrong.
        warning: it stops nothing.
        arithmetic: the sums behind it.
        attributes: of the set-up, whose keys are at fault.
        remedies: sets of changes; with each of them alone the finding is gone.
        advice: what to do that is no change of the set-up.
    """

    rule: str
    message: str
    warning: bool = False
    arithmetic: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    remedies: tuple[Changes, ...] = ()
    advice: str = ""


def layout_findings(setup: TrainerSetup, a: Architecture) -> Iterator[DoctorFinding]:
    """Sizes that do not divide what they are to share out, and ranks that a backend does not have."""
    lacking = {"fsdp": ("tp", "pp", "cp", "ep"), "ddp": ("tp", "pp", "cp", "ep"), "deepspeed": ("pp", "cp", "ep")}
    for name in lacking.get(setup.backend, ()):
        if getattr(setup, name) > 1:
            text = f"{name} {getattr(setup, name)}: {setup.framework} trains by {setup.backend}, which has none"
            yield DoctorFinding("layout", text, attributes=(name,), advice=f"leave it at 1: --train-{name} 1")
    if setup.backend == "fsdp" and setup.zero < 2:
        text = f"zero {setup.zero}: fsdp shares out gradients and the optimizer at least"
        yield DoctorFinding("layout", text, attributes=("zero",), advice="write --zero 2 or 3")
    model_ranks = setup.tp * setup.pp * setup.cp * setup.sp
    if setup.train_gpus % model_ranks:
        yield DoctorFinding(
            "layout",
            f"tp {setup.tp} x pp {setup.pp} x cp {setup.cp} x sp {setup.sp} = {model_ranks} ranks of a replica do not "
            f"divide {setup.train_gpus} training GPUs",
            attributes=("tp", "pp", "cp"),
        )
    else:
        layout = update_layout(setup, setup.cp * setup.sp)
        for name, why in layout_faults(a, layout, setup.gpus_per_node):
            # Stages of uneven depth can be set by hand in Megatron.
            uneven = name == "pp" and setup.backend == "megatron"
            yield DoctorFinding("layout", why, warning=uneven, attributes=(name,))
    if setup.ep > 1 and (not a.experts or a.experts % setup.ep or setup.train_gpus % (setup.ep * setup.etp * setup.pp)):
        why = (
            f"does not divide {a.experts} experts over {setup.train_gpus} GPUs"
            if a.experts
            else "is of no use: no experts"
        )
        yield DoctorFinding("layout", f"ep {setup.ep} {why}", attributes=("ep",))
    engine_ranks = setup.rollout_tp * setup.rollout_dp
    if setup.engine != "transformers":
        if setup.rollout_gpus % engine_ranks:
            text = f"engines of {engine_ranks} GPUs do not divide {setup.rollout_gpus} rollout GPUs"
            yield DoctorFinding("layout", text, attributes=("rollout_tp",))
        if uneven_heads := undivided(setup.rollout_tp, a):
            yield DoctorFinding("layout", f"rollout tp {uneven_heads}", attributes=("rollout_tp",))
    if setup.colocated and setup.rollout_gpus != setup.train_gpus and setup.engine != "transformers":
        text = f"engines and trainers share GPUs, but have {setup.rollout_gpus} and {setup.train_gpus} of them"
        yield DoctorFinding("layout", text, attributes=("rollout_gpus",))


def is_impossible(setup: TrainerSetup, a: Architecture) -> bool:
    """Whether a layout does not divide, so that nothing starts."""
    return any(not finding.warning for finding in layout_findings(setup, a))


def batch_findings(setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """Units of batches: what does not divide, what is split otherwise than it reads."""
    step, dp = setup.prompts * setup.samples, setup.dp
    mini = setup.mini_batch_samples or step
    if step % mini:
        yield DoctorFinding(
            "batch",
            f"a step has {setup.prompts} prompts x {setup.samples} samples = {step} samples, which optimizer steps of "
            f"{mini} samples do not divide",
            attributes=("mini_batch_samples",),
        )
    elif mini % dp:
        yield DoctorFinding(
            "batch",
            f"an optimizer step of {mini} samples does not divide over {dp} data-parallel ranks",
            warning=setup.micro_batch_tokens is not None,
            attributes=("mini_batch_samples",),
        )
    elif setup.micro_batch_samples and (mini // dp) % setup.micro_batch_samples:
        yield DoctorFinding(
            "batch",
            f"{mini // dp} samples of a rank do not divide into micro-batches of {setup.micro_batch_samples}",
            attributes=("micro_batch_samples",),
        )
    if mini < step:
        yield DoctorFinding(
            "off-policy",
            f"{step // mini} optimizer steps on one rollout: all but the first train on samples of older weights",
            warning=True,
            attributes=("mini_batch_samples",),
        )
    longest = setup.max_prompt_tokens + setup.max_response_tokens
    if setup.micro_batch_tokens and setup.micro_batch_tokens * setup.cp * setup.sp < longest:
        yield DoctorFinding(
            "micro-batch",
            f"micro-batches of {setup.micro_batch_tokens * setup.cp * setup.sp:,} tokens cannot hold a sample of "
            f"{setup.max_prompt_tokens:,} + {setup.max_response_tokens:,} tokens, which is never split: memory is that "
            f"of {longest:,}",
            warning=True,
            attributes=("micro_batch_tokens",),
        )
    if setup.steps_ahead:
        text = f"generation runs {setup.steps_ahead} steps ahead: training is not on-policy"
        yield DoctorFinding("off-policy", text, warning=True, attributes=("steps_ahead",))


def engine_findings(setup: TrainerSetup, a: Architecture, gpu: Gpu) -> Iterator[DoctorFinding]:
    """Engines whose KV is small for what they are asked to decode, or that hold memory while trainers train."""
    if setup.engine == "transformers":
        text = "samples are decoded by transformers, without an engine: one step at a time, at the longest's pace"
        yield DoctorFinding("no-engine", text, warning=True, attributes=("engine",))
        return
    step = engine_step_bytes(setup, a)
    room = memory_share(setup) * capacity_bytes(gpu) - engine_weight_bytes(setup, a) - step
    ranks = min(setup.rollout_tp, 1 if a.latent_kv else a.kv_heads)
    tokens = max(0.0, room * ranks / (2.0 * a.kv_values_per_token))
    each = mean_sample_tokens(setup)
    asked = math.ceil(setup.prompts * setup.samples / setup.engines)
    at_once = min(asked, setup.max_num_seqs or asked)
    held = at_once * each
    if 0 < tokens < held:
        yield DoctorFinding(
            "kv-cache",
            f"an engine has room for {tokens:,.0f} KV tokens, and {at_once} samples at once hold {held:,.0f}: it will "
            "preempt, and decode them again",
            warning=True,
            arithmetic=(
                f"{memory_share(setup):g} of {bytes_text(capacity_bytes(gpu))} less weights "
                f"{bytes_text(engine_weight_bytes(setup, a))} and {bytes_text(step)} of its largest step, by "
                f"{2 * a.kv_values_per_token / ranks / 1e3:.0f} kB a token",
                f"{at_once} x {each:,.0f} tokens, prompt and response"
                + ("" if setup.mean_response_tokens else " (a third of the cap; give --mean-response-tokens)"),
            ),
            attributes=("memory_share", "max_num_seqs"),
        )
    if setup.colocated and not setup.engine_sleeps:
        held_bytes = memory_share(setup) * capacity_bytes(gpu)
        yield DoctorFinding(
            "awake-engine",
            f"engines hold {bytes_text(held_bytes)} of each GPU while trainers train",
            warning=True,
            attributes=("engine_sleeps",),
        )


def length_findings(setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """What over-sampling does to the lengths that are trained."""
    issued = setup.issued_prompts or setup.prompts
    if issued <= setup.prompts:
        return
    ratio = trained_length_ratio(issued, setup.prompts, setup.samples)
    kept = (
        "they go on in the next step, under older weights"
        if setup.partial_rollout
        else "they are dropped until the next epoch"
    )
    yield DoctorFinding(
        "over-sampling",
        f"{issued} prompts are issued and the first {setup.prompts} to end are trained: their responses have "
        f"{ratio:.2f} of the mean length, and of those that did not end {kept}",
        warning=True,
        arithmetic=(
            f"{issued} groups of {setup.samples} drawn from the lengths math-16k, all decoded at one rate; the "
            f"{setup.prompts} whose longest sample ends first: mean length {ratio:.3f} of all",
        ),
        attributes=("issued_prompts",),
        advice="rlplan's rounds of mode exact over-issue without this bias: rlplan export, or the plug-in",
    )


def trained_length_ratio(issued: int, kept: int, samples: int, lengths: str = "math-16k", rounds: int = 400) -> float:
    """Mean length of trained samples over that of all, where the first `kept` of `issued` groups to end are trained.

    All samples decode at one rate, so a group ends with its longest sample. Groups are drawn from a shipped table of
    lengths, `rounds` times, with one seed.
    """
    trace, _ = named_lengths(lengths)
    by_prompt: dict[str, list[int]] = {}
    for row in trace.rows:
        by_prompt.setdefault(row.prompt, []).append(row.tokens)
    tokens = np.array([drawn for _, drawn in sorted(by_prompt.items())], dtype=float)  # (prompts, samples of each)
    rounds = max(1, min(rounds, 8_000_000 // (issued * samples)))
    random = np.random.default_rng(0)
    trained = everything = 0.0
    for _ in range(rounds):
        prompts = random.integers(len(tokens), size=issued)
        drawn = tokens[prompts[:, None], random.integers(tokens.shape[1], size=(issued, samples))]
        first = np.argsort(drawn.max(axis=1), kind="stable")[:kept]
        trained += drawn[first].mean()
        everything += drawn.mean()
    return float(trained / everything)


def key_findings(setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """Settings that the framework does not read."""
    for setting in setup.left_aside:
        if setting.kind != "not read":
            yield DoctorFinding(f"{setting.kind}-key", f"{setting.key} {setting.value}: {setting.why}", warning=True)
