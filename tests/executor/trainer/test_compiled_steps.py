"""Whether a trainer's layers run compiled, and steps with layers that do."""

import pytest
import torch

from rlplan.executor.trainer import gradient_sum
from rlplan.executor.trainer.policy import attention, chunked_head
from rlplan.executor.trainer.train_samples import group_advantages
from rlplan.executor.trainer.trainer_config import UpdateSettings

from .test_packed_attention import plain_varlen
from .test_trainer_rank import (
    DIVISORS,
    gradients,
    new_trainer,
    plain_policy,
    random_groups,
    token_loss,
    without_variance,
)


@pytest.fixture(autouse=True)
def _without_a_compiler(monkeypatch):
    """torch traces as ever, and runs the traced operations as they are."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **options, backend="eager"))
    with torch._dynamo.config.patch(suppress_errors=False):  # and as it was, afterwards
        yield


def test_a_trainer_whose_layers_are_compiled_has_the_same_gradients(model):
    groups = random_groups(4, seed=8)
    plain, compiled = new_trainer(model), new_trainer(model, compile="on")
    assert (gradients(plain, groups) - gradients(compiled, groups)).abs().max() < 1e-6
    metrics = compiled.step([*groups, *without_variance(random_groups(5, seed=9)[4:])])
    assert metrics["compiled"] == 1.0 and metrics["samples"] == 15
    assert plain.step(groups)["compiled"] == 0.0, "on a CPU they are not, unless the job says so"


@pytest.mark.parametrize("recompute", [False, True])
def test_all_paths_of_a_gpu_give_the_gradients_of_plain_forwards(monkeypatch, model, recompute):
    groups, launches = random_groups(3, seed=8), []
    policy, losses = plain_policy(model), []
    for group in groups:
        for sample, advantage in zip(group, group_advantages("dr_grpo", [s.reward for s in group]), strict=True):
            losses.append(token_loss(policy, sample, advantage, None))
    (torch.cat(losses).sum() / DIVISORS.tokens).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    @torch.compiler.disable
    def launch(*given, **named):
        launches.append(1)
        return plain_varlen(*given, **named)

    monkeypatch.setattr(attention, "varlen_attn", launch)
    monkeypatch.setattr(attention, "kernel", lambda *_: "row")
    monkeypatch.setattr(chunked_head._PASSES, "run", chunked_head._Passes().compiled)
    trainer = new_trainer(model, micro_batch_tokens=200, compile="on", name="dr_grpo")
    computed = trainer.gradients(groups, UpdateSettings(200, recompute=recompute))
    found = torch.cat([gradient.flatten() for gradient in computed.values()])
    assert launches and expected.abs().max() > 1e-2
    assert (found - expected).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("plain", "compiled", "kept"),
    [((9.0, 1.0, 1.2), (60.0, 0.9, 0.94), True), ((9.0, 1.0, 1.0), (60.0, 1.0, 0.96), False)],
)
def test_layers_stay_compiled_where_a_micro_batch_gains_a_twentieth(monkeypatch, model, plain, compiled, kept):
    groups, seconds, ways = random_groups(4, seed=8), iter([*plain, *compiled]), []
    trainer = new_trainer(model)
    expected = gradients(trainer, groups)
    clock = [0.0]
    accumulate = trainer._gradients._accumulate

    def timed(batch, totals, reference=None):
        ways.append(trainer._gradients._layers.compiled)
        clock[0] += next(seconds, 0.0)
        accumulate(batch, totals, reference)

    monkeypatch.setattr(gradient_sum.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(trainer._gradients, "_accumulate", timed)
    trainer._gradients._undecided = True  # as on a GPU
    found = gradients(trainer, groups)
    assert ways == [False] * 3 + [True] * 3 + [kept] * (len(ways) - 6) and len(ways) > 6
    assert (found - expected).abs().max() < 1e-6, "passes that decide leave no gradient behind"
    assert trainer.step(groups)["compiled"] == float(kept) and ways[-1] is kept, "it is decided once"


def test_layers_that_cannot_be_compiled_run_as_they_are(monkeypatch, model):
    tries = []

    def fails(*_):
        tries.append(1)
        raise RuntimeError("no compiler here")

    compile_ = torch._dynamo.optimize
    monkeypatch.setattr(torch, "compile", lambda f, **_: compile_(fails, dynamic=True)(f))
    groups, trainer = random_groups(3, seed=8), new_trainer(model)
    expected = gradients(trainer, groups)
    trainer._gradients._undecided = True
    monkeypatch.setattr(gradient_sum, "LEAST_GAIN", 1.0)
    torch._dynamo.reset()
    assert (gradients(trainer, groups) - expected).abs().max() < 1e-6
    assert tries and trainer.step(groups)["compiled"] == 0.0
