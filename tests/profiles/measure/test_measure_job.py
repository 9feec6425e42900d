"""From a job and a pool to all that is measured: what is refused, what is left out, and that everything ends."""

import os
from types import SimpleNamespace

import pytest

from rlplan.executor.processes.host import cpu_name
from rlplan.executor.trainer.step_checks import LOGPROB_LIMITS
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.model_shape import NamedModel
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.profiles.laws.measured_fit import TrainPoint
from rlplan.profiles.length_trace import LengthRow
from rlplan.profiles.measure import measure_job
from rlplan.profiles.measure.measure_machine import this_machine, versions
from rlplan.profiles.measure.measure_rounds import Effort, Sampled
from rlplan.profiles.measure.measure_site import FIRST
from rlplan.profiles.measure.time_budget import EngineTurns

from .fakes import Turns, demo_job, pool

LAYOUT = EngineLayout(1, 2)


def measured(monkeypatch, tmp_path, of=None, judge=False, judge_fails=False, model="Qwen2.5-0.5B", **job_changes):
    """Measurements of the demo's job on a pool, with stand-ins for all that starts or times something."""
    of, said, called = of or pool(2, kind="cpu"), [], {}
    job, paths = demo_job(max_response_tokens=100, max_prompt_tokens=28)
    if judge:
        job = job.model_copy(update={"reward": SimpleNamespace(judge="a judge", label="r", pooled=(), workers=1)})
    job = job.model_copy(update={"search": job.search.model_copy(update=job_changes)})
    points = [TrainPoint(tokens, 10 * tokens, 0.5 + 1e-3 * tokens) for tokens in (100, 300, 700)]
    sampled = Sampled(updates={4096: points}, groups=[["group"]], sync_s={LAYOUT: [0.25]})
    sampled.rows, sampled.prompt_tokens = [LengthRow("a", 0, 0, 7, False, 1.0, 3)], {"a": 3}
    turns = Turns()

    def note(name, result=None):
        async def call(*arguments):
            called[name] = arguments
            return result

        return call

    def site_of(subject, layouts, updates, most_samples):
        called["site"] = (subject.parameters, layouts, updates, most_samples)
        seats = SimpleNamespace(open=note("open"), nodes=[], close=lambda: turns.taken.append(("closed",)))
        fleet = SimpleNamespace(all_engines=lambda: ["engines"])
        rewards = SimpleNamespace(close=note("rewards closed"))
        return SimpleNamespace(
            placer=seats,
            fleet=fleet,
            rewards=rewards,
            turns=turns,
            machine=note("m", "a machine"),
            trainers={FIRST: SimpleNamespace(trained_parameters=7)},
        )

    def sampler(*arguments):
        called["sampler"] = arguments
        return SimpleNamespace(sampled=sampled, turns={LAYOUT: EngineTurns(1.0, 2.0)})

    async def engines(*arguments):
        called["engines"] = arguments
        if arguments[-1] is not None:
            await arguments[-1]("an engine", "a bench")
        return ("costs",)

    async def measure_judge(*arguments):
        called["judge"] = arguments
        if judge_fails:
            raise RunFailed("no verdict")
        return "a judge's costs"

    stand_ins = {
        "load_tokenizer": lambda path: ["tokens"], "load_prompts": lambda *how: {"a": "prompt"},
        "parameter_count": lambda path: 7 * 10**9, "check_shared": note("shared"),
        "named_model": lambda path: NamedModel(None, architecture_of(model)), "start_ray": lambda tokens: True,
            "site_of": site_of,
        "RoundRunner": lambda *how, **more: "runner", "RoundSampler": sampler, "measure_engines": engines,
        "measure_judge": measure_judge, "measure_drafts": note("drafts", "drafts"), "step_groups": lambda *how: how,
        "measure_reward": note("reward", "reward"), "measure_updates": note("updates", ("train",)),
        "kv_bytes_per_token": lambda path, dtype: 64,
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(measure_job, name, stand_in)
    found = measure_job.measure(job, paths, "main", of, tmp_path / "profile.yaml", Effort(), said.append)
    return found, called, said, turns.taken


def test_what_was_measured_becomes_the_measurements(monkeypatch, tmp_path):
    found, called, said, taken = measured(monkeypatch, tmp_path)
    assert (found.machine, found.rollout, found.train, found.reward, found.drafts, found.judge) == (
        "a machine", ("costs",), ("train",), "reward", "drafts", None,
    )  # fmt: skip
    assert found.sync[LAYOUT].p50 == 0.25 and found.turns == {}, "engines on CPUs do not sleep"
    assert (found.parameters, found.kv_bytes_per_token, found.left_out) == (7 * 10**9, 64, None)
    assert (found.shape.dtype, found.shape.attention_width) == ("float32", 24 * 14 * 64)
    assert found.trace.cap_tokens == 100 and found.prompt_tokens == {"a": 3} and found.seconds > 0
    parameters, layouts, updates, most = called["site"]
    assert layouts == [(1, 1), (1, 2), (2, 1)] and [u.dp for u in updates] == [1, 2] and parameters == 7 * 10**9
    assert most == 1024, "a wide round on the one engine of a layout"
    assert called["sampler"][5] == [2048, 4096, 8192] and set(called["sampler"][-1].values()) == {1.0}
    bench, (entry,) = called["updates"]
    assert (entry.micro_batch_tokens, entry.dp) == (4096, 1) and entry.step_s == pytest.approx(0.5, rel=1e-3)
    assert (bench.steps, bench.limits, bench.on_gpu) == (([["group"]], 16), LOGPROB_LIMITS["float32"], False)
    assert called["reward"][-1] == 1 and called["engines"][-1] is None and called["engines"][-2] == 1
    assert "rewards closed" in called
    assert taken == [("end", ["engines"], [FIRST]), ("closed",)]
    assert [line.split(" (")[0] for line in said] == ["starting Ray", "reserving devices", "reward workers", "stopping"]


def test_a_judge_is_measured_on_cores_only(monkeypatch, tmp_path):
    found, called, _, _ = measured(monkeypatch, tmp_path, judge=True)
    assert found.judge == "a judge's costs" and called["judge"][1:3] == ("an engine", "a bench")
    found, _, _, _ = measured(monkeypatch, tmp_path, judge=True, judge_fails=True)
    assert found.judge is None and found.left_out.endswith("over: the judge (no verdict)")
    gpus = pool(2, memory_bytes=80 * 10**9)
    found, called, _, _ = measured(monkeypatch, tmp_path, gpus, judge=True)
    assert (
        found.judge is None and "judge" not in called and "the judge, which is not measured on GPUs" in found.left_out
    )
    assert found.turns == {LAYOUT: (1.0, 2.0)} and called["updates"][0].on_gpu


def test_micro_batches_that_no_rank_holds_are_left_out(monkeypatch, tmp_path):
    gpus = pool(2, memory_bytes=80 * 10**9)
    _, called, said, _ = measured(monkeypatch, tmp_path, gpus, model="Qwen2.5-7B", micro_batch_tokens=[4096, 2**20])
    assert called["sampler"][5] == [4096]
    assert said[0].startswith("micro-batches of more than 4096 tokens are left out: the trainer has no memory for them")
    first, *others = called["site"][2]
    assert first.micro_batch_tokens == 4096
    assert others and all((each.dp, each.tp, each.sp) != (first.dp, first.tp, first.sp) for each in others)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tp": [4]}, r"search.tp: no size of \[4\] fits the pool's 2 accelerators a node"),
        ({"micro_batch_tokens": [64, 127]}, "none of .64, 127. holds the longest sequence of 128 tokens.*at least 128"),
        ({"model": "Llama-3.1-70B"}, "no number of ranks up to the pool's 2 holds the trainer of 7 billion parameters"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(monkeypatch, tmp_path, changes, says):
    with pytest.raises(InputError, match=says):
        measured(monkeypatch, tmp_path, pool(2, memory_bytes=80 * 10**9), **changes)
    _, called, _, _ = measured(monkeypatch, tmp_path, micro_batch_tokens=[128])
    assert called["sampler"][5] == [128]


def test_the_machine_is_this_host_as_a_node_of_the_pool():
    cores, gpus = this_machine(pool(2, kind="cpu")), this_machine(pool(8))
    assert (cores.accelerator, cores.kind, cores.accelerators) == (cpu_name(), "cpu", 2)
    assert (gpus.accelerator, gpus.kind, gpus.accelerators) == ("gpu", "cuda", 8)
    assert cores.peak_flops > 1e8 and cores.peak_bytes_per_s > 1e8
    assert gpus.peak_flops is None, "its data sheet says it"
    assert gpus.cores == len(os.sched_getaffinity(0)) and gpus.host_memory_bytes > 10**8
    assert {"python", "numpy", "torch"} <= set(versions()) and None not in versions().values()
