"""What a profile says that is far from the hardware's limit, that cannot be, or that is scaled from another model: the
warnings `slow-update`, `slow-decode`, `impossible-order` and `profile-scaled` of `rlplan check`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ...plans.check.finding import Fault
from ...plans.facts.plan_text import update_text
from ...plans.phrases.numbers import count, digits, percent, seconds
from ...plans.schema.levers import UpdateLayout
from ..phase_schema import Rollout, Train
from ..profile_schema import Profile
from .hardware_peaks import (
    SAMPLE_SHARE,
    DecodeNeeds,
    Peaks,
    PolicyWork,
    best_read,
    decoding_points,
    dtype_of,
    peaks_of,
    whole_update,
    work_of,
)

SLOW_UPDATE = 0.15
"""MFU below which an update is slow: half of what is usual, since trainers of dense models reach 0.3 to 0.5 (PaLM,
table 3)."""

SLOW_DECODE = 0.25
"""Share of the bandwidth below which decoding is slow if no measured step reaches it, and none computes at that share
of the peak. One sequence of a 7B to 72B model reads at 0.4 to 0.75 on as few GPUs as hold the model, by the public
measurements that the shipped profiles rest on. Of a mixture of experts it is not told which experts a step reads."""

LEAST_PARAMETERS = 100_000_000
"""Of smaller models the calls of a step take longer than its arithmetic, on GPUs and on CPUs: an H100 reads 100 million
weights in 60 microseconds, in which it launches some ten kernels. How slow they are, and whether engines of a larger TP
are slower, tells nothing."""

TOLERANCE = 0.05
"""Share by which two measurements must be in a wrong order, beside the spread of both."""


def suspicions(profile: Profile, mean_tokens: float = 0.0) -> list[Fault]:
    """Faults of a profile, each at its key; `mean_tokens`: of the sample of a trained token (PolicyWork.mfu)."""
    faults = [Fault.of("profile-scaled", ("scaled",), profile.scaled)] if profile.scaled else []
    faults += [*_recompute_faster(profile.train, mean_tokens), *_larger_faster(profile.rollout)]
    if profile.model_parameters < LEAST_PARAMETERS:
        return faults
    faults += _tp_slower(profile.rollout)
    peaks = peaks_of(profile.machine, dtype_of(profile))
    if peaks is not None:
        work = work_of(profile)
        faults += _beyond_peak(profile, work, peaks, mean_tokens)
        faults += [*_slow_update(profile.train, work, peaks, mean_tokens), *_slow_decode(profile, work, peaks)]
    return faults


def recompute_gains(with_recompute: float, without: float) -> bool:
    """Whether an update was faster with recomputation than without, by seconds of the same work."""
    return with_recompute < without * (1 - TOLERANCE)


def wrong_order(smaller: DecodeNeeds, larger: DecodeNeeds) -> bool:
    """Whether a step of more sequences, or of as many, and of no fewer KV tokens took less time, beyond the spread."""
    grown = larger.sequences >= smaller.sequences and larger.kv_tokens >= smaller.kv_tokens
    same = (larger.sequences, larger.kv_tokens) == (smaller.sequences, smaller.kv_tokens)
    return grown and not same and larger.step_s < smaller.step_s * (1 - TOLERANCE - smaller.spread - larger.spread)


def without_recompute(entries: Sequence[Train], entry: Train) -> Train | None:
    """The entry of the same layout without recomputation; None of one without, or if there is none."""
    if entry.recompute == "none":
        return None
    plain = entry.layout.model_copy(update={"recompute": "none"})
    return next((other for other in entries if other.layout == plain), None)


def same_update_s(entry: Train, mean_tokens: float = 0.0) -> float:
    """Seconds of the update that entries are compared by; `mean_tokens` as in `suspicions`, 0: SAMPLE_SHARE."""
    return whole_update(entry, mean_tokens or SAMPLE_SHARE * entry.micro_batch_tokens)[1]


def as_can_be(entries: Sequence[Train], entry: Train) -> Train:
    """A measured update as it is priced: with recomputation as without, if it took less, since it computes more."""
    plain = without_recompute(entries, entry)
    if plain is None or same_update_s(entry) >= same_update_s(plain):
        return entry
    keys = ("step_s", "step_s_per_token", "step_s_per_token_squared")
    return entry.model_copy(update={key: getattr(plain, key) for key in keys})


def measured_updates(measured: Sequence[Train]) -> list[Train]:
    """A profile's measured entries as they are priced: none takes less time because it computes more."""
    return [as_can_be(measured, entry) for entry in measured]


def measured_update(measured: Sequence[Train], layout: UpdateLayout) -> Train | None:
    """The measured entry for an update's layout, as it is priced; None where only a law may know it."""
    return next((entry for entry in measured_updates(measured) if entry.layout == layout.trained), None)


def _slow_update(entries: Sequence[Train], work: PolicyWork, peaks: Peaks, mean_tokens: float) -> Iterator[Fault]:
    priced = [as_can_be(entries, entry) for entry in entries]
    best = max(enumerate(priced), key=lambda item: work.mfu(item[1], peaks, mean_tokens), default=None)
    if best is None or (mfu := work.mfu(best[1], peaks, mean_tokens)) >= SLOW_UPDATE:
        return
    number, entry = best
    tokens, whole_s = whole_update(entry, mean_tokens)
    fixed = entry.step_s > whole_s / 2
    yield Fault(
        "slow-update",
        ("train", number, "step_s" if fixed else "step_s_per_token"),
        f"the best update ({update_text(entry.layout)}) has an MFU of {percent(mfu)}, below {percent(SLOW_UPDATE)}: "
        f"{count(tokens, 'token')} take {seconds(whole_s)}, the arithmetic {seconds(mfu * whole_s)}; "
        + (
            f"{seconds(entry.step_s)} of it, whatever the tokens, are the optimizer, states on their way or waiting"
            if fixed
            else "the rest is attention kernels planned anew for each length, work over logits that is not fused, "
            "micro-batches too small, or float32"
        ),
        "measure with the newest torch and rlplan, model.dtype bfloat16 and larger search.micro_batch_tokens; do not "
        "plan many GPUs by this figure",
    )


def _slow_decode(profile: Profile, work: PolicyWork, peaks: Peaks) -> Iterator[Fault]:
    measured = [(number, each) for number, each in enumerate(profile.rollout) if each.points and decoding_points(each)]
    if not measured or work.parameters < profile.model_parameters:
        return
    number, entry = max(measured, key=lambda item: best_read(work, item[1], peaks))
    points = decoding_points(entry)
    share = best_read(work, entry, peaks)
    if share >= SLOW_DECODE or max(work.computes(entry, p, peaks) for p in points) >= SLOW_DECODE:
        return
    largest = max(points, key=lambda point: point.sequences)
    by_sequences = largest.sequences * entry.step_s_per_sequence > largest.step_s / 2
    cause = (
        f"each sequence adds {digits(1e6 * entry.step_s_per_sequence)} us to a step: work on the host for each "
        "request, such as generators of rollout.seed_per_sample"
        if by_sequences
        else f"a step takes {seconds(entry.step_s)} before it has a sequence: launches, without captured graphs or of "
        "a model that is small for its accelerators"
    )
    yield Fault(
        "slow-decode",
        ("rollout", number, "step_s_per_sequence" if by_sequences else "step_s"),
        f"no decode step of any engine reads weights and KV at more than {percent(share)} of the bandwidth, below "
        f"{percent(SLOW_DECODE)}; {cause}",
        "compare with vllm bench on the same model; set rollout.seed_per_sample: false"
        if by_sequences
        else "compare with vllm bench on the same model; take a smaller search.tp",
    )


def _beyond_peak(profile: Profile, work: PolicyWork, peaks: Peaks, mean_tokens: float) -> Iterator[Fault]:
    """Updates and decode steps that took less than the hardware can."""
    remedy = "measure again, and look at model_parameters, shape and machine: rlplan profile"
    for number, train in enumerate(profile.train):
        if (mfu := work.mfu(train, peaks, mean_tokens)) > 1 + TOLERANCE:
            message = f"updates with {update_text(train.layout)} are faster than the hardware can: MFU {percent(mfu)}"
            yield Fault("impossible-order", ("train", number, "step_s_per_token"), message, remedy)
    for number, entry in enumerate(profile.rollout):
        shares = [(max(work.reads(entry, p, peaks), work.computes(entry, p, peaks)), p) for p in decoding_points(entry)]
        share, point = max(shares, key=lambda each: each[0], default=(0.0, None))
        if point is not None and share > 1 + TOLERANCE + point.spread:
            key = "points" if entry.points else "curve_s" if entry.curve_s else "step_s"
            message = f"a decode step of {_of(point)} is faster than the hardware can: {percent(share)} of the peak"
            yield Fault("impossible-order", ("rollout", number, key), message, remedy)


def _recompute_faster(entries: Sequence[Train], mean_tokens: float) -> Iterator[Fault]:
    for number, entry in enumerate(entries):
        plain = without_recompute(entries, entry)
        if plain is None:
            continue
        recomputed_s, plain_s = same_update_s(entry, mean_tokens), same_update_s(plain, mean_tokens)
        if not recompute_gains(recomputed_s, plain_s):
            continue
        yield Fault(
            "impossible-order",
            ("train", number, "step_s_per_token"),
            f"updates with {update_text(entry.layout)} took {seconds(recomputed_s)}, and without "
            f"recomputation, which computes less, {seconds(plain_s)}: the GPU planned kernels for new "
            "lengths meanwhile, or another process used it; plans take the longer time for both",
            "measure again: rlplan profile",
        )


def _larger_faster(entries: Sequence[Rollout]) -> Iterator[Fault]:
    for number, entry in enumerate(entries):
        for smaller, larger in itertools.permutations(decoding_points(entry), 2):
            if wrong_order(smaller, larger):
                yield Fault(
                    "impossible-order",
                    ("rollout", number, "points") if entry.points else ("rollout", number, "step_s"),
                    f"a decode step of {_of(larger)} took {seconds(larger.step_s)}, and one of {_of(smaller)}, which "
                    f"has less to do, {seconds(smaller.step_s)}: the first calls were slow, or another process ran",
                    "measure again: rlplan profile",
                )
                break


def _tp_slower(entries: Sequence[Rollout]) -> Iterator[Fault]:
    numbered = sorted(enumerate(entries), key=lambda item: item[1].tp)
    for (_, narrow), (number, wide) in itertools.combinations(numbered, 2):
        if wide.tp == narrow.tp or (narrow.engines, narrow.ep) != (wide.engines, wide.ep):
            continue
        few = {(p.sequences, round(p.kv_tokens)): p for p in decoding_points(narrow)}
        for point in decoding_points(wide):
            other = few.get((point.sequences, round(point.kv_tokens)))
            if other is not None and point.step_s > other.step_s * (1 + TOLERANCE + point.spread + other.spread):
                yield Fault(
                    "impossible-order",
                    ("rollout", number, "points") if wide.points else ("rollout", number, "step_s"),
                    f"a decode step of {_of(point)} took {seconds(point.step_s)} with tp {wide.tp}, and "
                    f"{seconds(other.step_s)} with tp {narrow.tp}: sums between accelerators cost more than they save, "
                    "or go through host memory (no NVLink, no peer access)",
                    f"leave {wide.tp} out of search.tp, or look at the links: nvidia-smi topo -m",
                )
                break


def _of(point: DecodeNeeds) -> str:
    return f"{count(point.sequences, 'sequence')} with {count(point.kv_tokens, 'KV token')}"
