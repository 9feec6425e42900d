"""What a profile says that cannot be, or that is far from the hardware's limit; and what is no reason to say so."""

import itertools

import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.profiles.laws.hardware_peaks import DecodeNeeds, decoding_points, peaks_of, shape_of_policy, work_of
from rlplan.profiles.laws.suspicions import measured_updates, suspicions, wrong_order
from rlplan.profiles.library import library_names, library_profile
from rlplan.profiles.phase_schema import DecodePoint, Train
from rlplan.profiles.profile_schema import Machine, Profile

from ...planner.conftest import rollout, small_profile

H100 = Machine(accelerator="NVIDIA-H100-80GB-HBM3", kind="cuda", accelerators=1, cores=16, host_memory_bytes=10**11)

# One H100 under vLLM 0.24 and torch 2.11, the 0.5B shape of benchmarks.gpu_check: (sequences, KV tokens, seconds).
MEASURED_STEPS = ((1, 56, 0.00253247), (256, 14336, 0.0178653), (32, 33568, 0.00447297), (128, 134272, 0.008729))
MEASURED_UPDATES = (("none", 8192, 0.559458, 0.00087448), ("none", 16384, 0.559458, 0.000836706),
                    ("full", 16384, 0.287841, 0.000430486))  # fmt: skip


def point(sequences, kv_tokens, step_s, spread=0.02):
    return DecodePoint(sequences=sequences, kv_tokens=kv_tokens, step_s=step_s, spread=spread)


def update(recompute="none", tokens=16384, step_s=0.1, per_token=1e-5, **more):
    return Train(dp=1, micro_batch_tokens=tokens, step_s=step_s, step_s_per_token=per_token,
                 step_s_per_token_squared=0.0, error=0.1, recompute=recompute, **more)  # fmt: skip


def engines(*points, tp=1, number=1, b=1e-6):
    entry = rollout(tp, number, points[0].step_s, b)
    return entry.model_copy(update={"points": points, "kv_bytes_per_token": 12288})


def h100(**changes):
    """A profile of a 0.5B model on an H100 that has nothing suspicious: half of the bandwidth, MFU 0.3."""
    fast = {"rollout": (engines(point(1, 56, 6e-4), point(256, 14336, 1.2e-3)),), "train": (update(per_token=1e-5),)}
    return small_profile(machine=H100, model_parameters=494_054_272, checks=(), **{**fast, **changes})


def told(profile, mean_tokens=0.0):
    return [(fault.rule, fault.key) for fault in suspicions(profile, mean_tokens)]


def test_the_measured_profile_of_an_h100_is_suspicious_in_all_three_ways():
    found = h100(
        rollout=(engines(*(point(*each) for each in MEASURED_STEPS), b=5.49893e-05),),
        train=tuple(update(*each) for each in MEASURED_UPDATES),
    )
    assert told(found) == [
        ("impossible-order", "train.2.step_s_per_token"),
        ("slow-update", "train.1.step_s_per_token"),
        ("slow-decode", "rollout.0.step_s_per_sequence"),
    ]
    order, slow, decode = suspicions(found)
    # 8 micro-batches of 16,384 tokens, each token at 0.430486 and at 0.836706 ms, and at 6 x 494M / 989e12 operations.
    assert "56.7 s" in order.message and "110 s" in order.message and "rlplan profile" in order.remedy
    assert "MFU of 0.4%" in slow.message and "arithmetic 0.393 s" in slow.message and slow.remedy
    assert "55.0 us" in decode.message and "seed_per_sample: false" in decode.remedy


def test_a_profile_near_its_limits_is_not_suspicious():
    assert told(h100()) == []
    assert told(h100(train=(update(per_token=1e-5), update("full", per_token=1.3e-5)))) == []


def test_larger_micro_batches_may_well_be_faster():
    assert told(h100(train=(update(tokens=8192, per_token=1.5e-5), update(per_token=1e-5)))) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"train": (update(per_token=3e-5),)}, [("slow-update", "train.0.step_s_per_token")]),
        ({"train": (update(step_s=60.0),)}, [("slow-update", "train.0.step_s")]),  # none of it depends on tokens
        ({"train": (update(step_s=0.0, per_token=2.8e-6),)}, [("impossible-order", "train.0.step_s_per_token")]),
        ({"train": (update(step_s=0.0, per_token=2.9e-6),)}, []),
        ({"rollout": (engines(point(1, 56, 2.7e-4)),)}, [("impossible-order", "rollout.0.points")]),  # 988 MB
        ({"train": (update(), update("full", step_s=3.0, per_token=0.9e-5))}, []),  # its fit slopes less, no more
        ({"train": (update(step_s=0.4), update("full"))}, [("impossible-order", "train.1.step_s_per_token")]),
        ({"train": (update(per_token=3e-5), update(tokens=8192, per_token=1e-5))}, []),  # one of them is fast
        (
            {"train": (update(), update("full", per_token=0.9e-5))},
            [("impossible-order", "train.1.step_s_per_token")],
        ),
        ({"train": (update(), update("full", per_token=0.97e-5))}, []),  # within the tolerance
        (
            {"rollout": (engines(point(1, 56, 6e-4), point(64, 4000, 4e-4)),)},
            [("impossible-order", "rollout.0.points")],
        ),
        ({"rollout": (engines(point(1, 56, 6e-4), point(64, 4000, 5.5e-4, 0.1)),)}, []),  # within their spread
        ({"rollout": (engines(point(1, 56, 6e-3)),)}, [("slow-decode", "rollout.0.step_s")]),
        (
            {"rollout": (engines(point(1, 56, 6e-4)), engines(point(1, 56, 8e-4), tp=2))},
            [("impossible-order", "rollout.1.points")],
        ),
        ({"rollout": (engines(point(1, 56, 6e-4)), engines(point(2, 112, 8e-4), tp=2))}, []),  # not the same point
        ({"rollout": (engines(point(4096, 10**4, 1.3e-2)),)}, []),  # bound by operations: 0.3 of the peak
    ],
)  # fmt: skip
def test_a_seeded_fault_is_told_and_its_neighbour_is_not(changes, wanted):
    assert told(h100(**changes)) == wanted


def test_calls_of_a_small_model_take_longer_than_its_arithmetic():
    """And a recompute that gains is impossible at any size."""
    slow = {"train": (update(per_token=1.0),), "rollout": (engines(point(1, 56, 1.0)),)}
    assert [rule for rule, _ in told(h100(**slow))] == ["slow-update", "slow-decode"]
    small = h100(**slow).model_copy(update={"model_parameters": 2_000_000})
    assert told(small) == []
    faster = small.model_copy(update={"train": (update(per_token=1.0), update("full", per_token=0.5))})
    assert [rule for rule, _ in told(faster)] == ["impossible-order"]


def test_a_profile_of_outliers_alone_says_nothing_of_decoding():
    outlier = point(1, 56, 6e-3).model_copy(update={"outlier": True})
    assert told(h100(rollout=(engines(outlier),))) == []


def test_a_cpu_has_the_peak_that_was_measured_on_it():
    cpu = Machine(accelerator="cpu", kind="cpu", accelerators=2, cores=2, host_memory_bytes=10**10)
    decoding = (engines(point(1, 56, 0.4)),)
    slow = h100(train=(update(per_token=1.0),), rollout=decoding).model_copy(update={"machine": cpu})
    assert peaks_of(cpu, "float32") is None and told(slow) == [], "what cannot be told is not told"
    peaks = {"peak_flops": 5e10, "peak_bytes_per_s": 1e10}
    slow = slow.model_copy(update={"machine": cpu.model_copy(update=peaks)})
    assert told(slow) == [("slow-update", "train.0.step_s_per_token")]
    fast = slow.model_copy(update={"train": (update(per_token=0.1),)})  # 3 GFLOP a token of 100 GFLOP/s: 0.03 s
    assert told(fast) == []
    of_two_cores = peaks_of(slow.machine, "float32")
    assert [of_two_cores.of_trainers(ranks) for ranks in (1, 2, 3)] == [1e11, 1e11, 1.5e11], (
        "a rank has a core at least"
    )
    assert peaks_of(H100, "bfloat16").of_trainers(3) == 3 * 989e12


def test_attention_counts_by_the_length_of_the_samples():
    model = architecture_of("Qwen2.5-0.5B")
    shape = shape_of_policy(model, 494_054_272, "bfloat16")
    assert shape.attention_width == 24 * 14 * 64 and shape.active_parameters == 494_054_272
    profile = h100().model_copy(update={"shape": shape})
    work, peaks, entry = work_of(profile), peaks_of(H100, "bfloat16"), profile.train[0]
    assert work.mfu(entry, peaks, 1000.0) == pytest.approx(
        131072 * (6 * 494_054_272 + 6 * 24 * 14 * 64 * 1000) / ((0.1 + 131072e-5) * 989e12)
    )
    slow = profile.model_copy(update={"train": (update(per_token=2.1e-5),)})
    assert [rule for rule, _ in told(slow)] == ["slow-update"] and told(slow, 16384.0) == []


def test_a_token_uses_few_experts():
    model = architecture_of("Qwen3-30B-A3B")
    shape = shape_of_policy(model, model.parameters, "bfloat16")
    assert 3e9 < shape.active_parameters < 3.6e9 < model.parameters
    work = work_of(h100().model_copy(update={"model_parameters": model.parameters, "shape": shape}))
    assert work.step_parameters(1) == shape.active_parameters
    unvisited = model.parameters - work.step_parameters(64)
    assert unvisited == pytest.approx((1 - 8 / 128) ** 64 * 48 * 128 * 3 * 2048 * 768), "of its experts"
    assert shape_of_policy(None, 1000, "float32").attention_width == 0


def test_a_token_uses_no_more_parameters_than_there_are():
    shape = shape_of_policy(None, 494_054_273, "bfloat16")
    with pytest.raises(ValueError, match="at most all 494054272"):
        Profile.model_validate(h100().model_dump() | {"shape": shape.model_dump()})


def test_float32_has_half_of_a_gpus_peak():
    assert peaks_of(H100, "float32").flops == peaks_of(H100, "bfloat16").flops / 2
    assert peaks_of(H100.model_copy(update={"accelerator": "unheard-of"}), "bfloat16") is None


@pytest.mark.parametrize(
    ("smaller", "larger", "wrong"),
    [
        (DecodeNeeds(1, 10, 1.0), DecodeNeeds(2, 10, 0.9), True),
        (DecodeNeeds(1, 10, 1.0), DecodeNeeds(1, 20, 0.9), True),
        (DecodeNeeds(1, 10, 1.0), DecodeNeeds(2, 5, 0.9), False),  # fewer KV tokens
        (DecodeNeeds(1, 10, 1.0), DecodeNeeds(2, 10, 0.96), False),
        (DecodeNeeds(1, 10, 1.0), DecodeNeeds(1, 10, 0.5), False),  # the same point
    ],
)
def test_more_work_in_less_time_is_a_wrong_order(smaller, larger, wrong):
    assert wrong_order(smaller, larger) is wrong


def test_a_recompute_that_gains_is_priced_as_without_it():
    profile = h100(train=tuple(update(*each) for each in MEASURED_UPDATES))
    _, plain, recomputed = measured_updates(profile.train)
    assert (recomputed.step_s, recomputed.step_s_per_token) == (plain.step_s, plain.step_s_per_token)
    slower = h100(train=(update(), update("full", per_token=1.3e-5)))
    assert tuple(measured_updates(slower.train)) == slower.train, "what can be stays as it was measured"


def test_no_shipped_profile_says_what_cannot_be():
    shipped = [library_profile(*name) for name in library_names()]
    assert len(shipped) > 40
    assert [told(profile) for profile in shipped] == [[]] * len(shipped)
    for profile in shipped:
        work, peaks = work_of(profile), peaks_of(profile.machine, "bfloat16")
        reads = [work.reads(e, p, peaks) for e in profile.rollout for p in itertools.islice(decoding_points(e), 1)]
        assert all(0 < share < 1 for share in reads)
