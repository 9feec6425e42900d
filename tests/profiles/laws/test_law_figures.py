"""Figures of the laws at usual layouts, so that no term changes unseen.

They are the laws' own. Who changes a law looks at what changes here, builds the profiles that ship anew, and takes the
new figures over.
"""

import numpy as np
import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.decode_law import FACTORS, DecodeLaw, sheet
from rlplan.profiles.laws.rank_memory import kv_capacity_tokens, rank_peak_bytes, train_memory
from rlplan.profiles.laws.sync_law import cold_start_s, sync_s
from rlplan.profiles.laws.train_law import TrainPhysics
from rlplan.tools.served_fit import Served, running, seconds_per_token

from ..public_laws import neutral, update_layout


def update(model, gpu="H100", **layout):
    """Seconds of a step, and more for a million tokens and for 1e9 squared tokens."""
    physics = TrainPhysics(architecture_of(model), GPUS[gpu], neutral(), 40e9, 8, 1.7)
    found = physics.update(update_layout(**layout))
    return [found.step_s, 1e6 * found.per_token_s, 1e9 * found.per_token_squared_s]


def memory(model, compute_bytes=2, on_gpu=True, tokens=None, micro_batches=2, **layout):
    """GB that stay, and at each moment more."""
    a = architecture_of(model)
    found = train_memory(a, update_layout(**layout), compute_bytes, on_gpu, tokens, micro_batches)
    return [found.persistent / 1e9, *(held / 1e9 for held in found.instants.values())]


def decode(model, gpu, tp, sequences, kv_tokens, ep=1.0, dp=1.0, weight_bytes=2.0):
    """Milliseconds of a step, of its sums, and of its KV."""
    law = DecodeLaw(sheet(architecture_of(model), GPUS[gpu], weight_bytes), np.linspace(-0.3, 0.4, len(FACTORS)))
    step, sums = law.step_s(tp, sequences, kv_tokens, ep, dp), law.sums_s(tp, sequences)
    return [1e3 * float(each) for each in (step, sums, law.kv_s(tp, kv_tokens, dp))]


def served(tp, ep, dp, batch, isl, osl):
    """Milliseconds of an output token while so many requests are served, and how many of them decode at once."""
    points = Served(*(np.array([float(each)]) for each in (tp, ep, dp, batch, isl, osl, 1.0, 1.0)))
    law = DecodeLaw(sheet(architecture_of("Qwen3-30B-A3B"), GPUS["H100"], 2.0), np.linspace(-0.3, 0.4, len(FACTORS)))
    return [1e3 * float(seconds_per_token(law, points)[0]), float(running(law, points)[0])]


def around(model, tp, gpu="H100"):
    """KV tokens of an engine, its start, and a transfer of all weights."""
    a = architecture_of(model)
    return [
        kv_capacity_tokens(a, GPUS[gpu], tp),
        cold_start_s(a, tp),
        sync_s(a, {"start": 1.1, "bytes": 0.9, "tensors": 1.3}),
    ]


def test_the_laws_give_the_figures_that_they_gave():
    for found, figures in (
        (update("Qwen2.5-7B", dp=1, recompute="none"), [0.1199501, 97.11064, 1.294209]),
        (update("Qwen2.5-7B", dp=8, offload=True), [0.7675272, 16.29923, 0.2079979]),
        (update("Qwen2.5-0.5B", dp=4, tp=2, sp=2, recompute="none"), [0.0738943, 3.130153, 0.02946637]),
        (update("Qwen2.5-14B", dp=2, tp=4, cp=2, pp=2), [1.113608, 28.84172, 0.2164876]),
        (update("Qwen3-30B-A3B", dp=16, ep=8), [0.4567685, 11.60259, 0.3463802]),
        (
            memory("Qwen2.5-7B", dp=8, recompute="none"),
            [17.73057, 115.2538, 116.9666, 117.1653, 118.8803, 6.349128, 0, 5.449974, 3.269984],
        ),
        (
            memory("Qwen2.5-7B", dp=2, tp=4, sp=2, offload=True, micro_batches=1),
            [4.812569, 3.163587, 4.058939, 3.440148, 4.817191, 5.799084, 2.84944, 5.310054, 5.582553],
        ),
        (
            memory("Qwen2.5-0.5B", compute_bytes=4, on_gpu=False, tokens=1500),
            [7.903379, 1.059639, 1.971255, 1.602081, 0.3807926, 0.5660426, 0],
        ),
        (
            memory("Qwen2.5-0.5B", compute_bytes=4, dp=2, recompute="selective"),
            [6.45169, 47.02156, 48.81075, 47.8422, 46.80227, 1.928135, 0, 1.089077, 0],
        ),
        (
            memory("Qwen3-30B-A3B", dp=16, ep=8),
            [33.03191, 5.166989, 6.411649, 6.143214, 9.725673, 3.404857, 0, 3.111649, 1.86699],
        ),
        (decode("Qwen3-32B", "H100", 4, 64, 200_000), [11.94606, 1.873837, 3.486215]),
        (decode("Qwen3-30B-A3B", "A100", 2, 200, 10**6, 2.0), [44.38456, 1.069034, 21.47895]),
        (decode("DeepSeek-V3", "H200", 8, 30, 10**5, 8.0, 4.0, 1.0), [19.72093, 2.217935, 0.3261146]),
        (decode("gpt-oss-120b", "B200", 1, 16, 10**5, weight_bytes=0.5), [5.336486, 0, 0.4105836]),
        (served(4, 1, 1, 64, 1024, 512), [9.622016, 64]),
        (served(1, 8, 8, 32, 4096, 512), [30.0153, 256]),
        (served(2, 1, 1, 4096, 8192, 1024), [30.69317, 120.9796]),
        (
            memory("Qwen2.5-0.5B", compute_bytes=4, on_gpu=False, tokens=900, dp=1, recompute="full"),
            [7.903379, 0.6366224, 1.183592, 1.179064, 0.2354486, 0.557441, 0],
        ),
        (around("Qwen2.5-32B", 2), [268838, 54.38138, 16.29554]),
        (around("Qwen3-30B-A3B", 8, "H200"), [4690227, 41.81649, 38.87886]),
        (around("DeepSeek-V3", 8, "B200"), [0, 121.8782, 361.2233]),
    ):
        assert found == pytest.approx(figures, rel=1e-5)


def test_moments_that_leave_and_dtypes_change_the_peak():
    a = architecture_of("Qwen2.5-7B")
    peaks = [
        rank_peak_bytes(a, update_layout(8), dtype, kind)
        for dtype in ("float32", "bfloat16")
        for kind in ("cpu", "cuda")
    ]
    assert peaks == [41178497024, 43678497024, 29023928320, 31523928320]


def test_float32_logits_take_twice_the_bytes_and_a_narrow_gradient():
    a, rows = architecture_of("Qwen2.5-7B"), 2048
    layout = update_layout(8).model_copy(update={"micro_batch_tokens": 4 * rows})
    plain, wide = (train_memory(a, layout, logit_bytes=size).moments for size in (None, 4))
    more = [
        wide[at]["trainer_logits"] - plain[at]["trainer_logits"] for at in ("loss", "loss_backward", "head_backward")
    ]
    assert more == [2.0 * rows * a.vocab, 4.0 * rows * a.vocab, 4.0 * rows * a.vocab]
    assert rank_peak_bytes(a, layout, head_dtype="float32") >= rank_peak_bytes(a, layout)
