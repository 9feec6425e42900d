"""`solve` writes no plan that `check` finds a fault in, or that `execute --dry-run` refuses on that cluster."""

import json
import math
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.planner.check.checker import Checker
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.solve import solve
from rlplan.plans.check.plan_check import model_of_plan
from rlplan.plans.facts.executable import unsupported
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, job_paths, load_job
from rlplan.plans.schema.plan import Inputs
from rlplan.plans.yaml.errors import Infeasible
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump, load
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.judge_schema import Judge
from rlplan.profiles.length_trace import LengthRow, read_lengths, write_lengths
from rlplan.profiles.library import library_names, library_profile
from rlplan.profiles.library.fitness import subject_digest
from rlplan.profiles.phase_schema import Reward, Train
from rlplan.profiles.profile_schema import Machine, Profile, ProfileLengths

from ..planner.conftest import rollout, spread
from .command_line import rlplan
from .solved_folder import sha

JUDGE = {"kind": "judge", "model": "m/m", "prompt": "{response}?", "scale": [0, 1], "deadline_s": 5.0, "weight": 0.1}

MODES = (None, "sync", "race", "defer", "exact", "predict")


@st.composite
def cases(draw):
    """(cluster, job, profile, length rows, rows of data, options of the solve)."""
    on_gpus = draw(st.sampled_from([True, False, False]))
    cap, longest_prompt = draw(st.sampled_from([48, 200, 1024])), draw(st.sampled_from([8, 64]))
    prompts, samples = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    cluster, profile, model = draw(gpus() if on_gpus else cpus())
    pool = cluster.pools["main"]
    budgets = sorted({entry.micro_batch_tokens for entry in profile.train} or {2048, 4096})
    search: dict[str, Any] = {"tp": sorted({entry.tp for entry in profile.rollout}), "micro_batch_tokens": budgets}
    reward = {"kind": "math", "workers": draw(st.integers(1, pool.cores)), "deadline_s": 2.0}
    judged = on_gpus and draw(st.booleans())  # beside engines and trainers, where this executor has no judge
    if on_gpus:
        search |= {"hand_over": [0.5], "drafts": {"tokens": [2, 4], "acceptance": 0.8}}
    job = job_of(
        model, "bfloat16" if on_gpus else "float32", [reward, JUDGE] if judged else reward,
        {"prompts_per_step": prompts, "samples_per_prompt": samples, "max_prompt_tokens": longest_prompt,
         "max_response_tokens": cap},
        search, mask_truncated=draw(st.booleans()), dynamic_sampling=draw(st.booleans()),
        slo_s=draw(st.sampled_from([None] * 6 + [2000.0, 5.0])),
    )  # fmt: skip
    rows = rows_of(draw(st.lists(st.integers(1, cap), min_size=24, max_size=24)), cap, longest_prompt)
    options = {
        "mode": draw(st.sampled_from(MODES)),
        "objective": draw(st.sampled_from(["seconds", "usd"])),
        "bias_budget": draw(st.sampled_from([None, None, 0.3])),
        "seed": draw(st.integers(0, 3)),
        "for_any": judged or draw(st.booleans()),
    }
    if judged:
        profile = with_a_judge(profile)
    return cluster, job, profile, rows, draw(st.sampled_from([1, 8, 12, 16])) * prompts, options


def with_a_judge(profile):
    judge = Judge(per_sample_s=1e-4, per_token_s=0.0, beside_factor=1.2, rollout_factor=1.1)
    return profile.model_copy(update={"judge": judge})


def job_of(model, dtype, reward, rollout, search, slo_s=None, **algorithm):
    document = {"rlplan_job": 1, "name": "generated", "model": {"path": model, "dtype": dtype},
                "data": {"path": "data.jsonl"}, "reward": reward, "rollout": rollout,
                "algorithm": {"name": "grpo", "learning_rate": 1e-6, **algorithm}, "search": search,
                "slo": {"step_p95_s": slo_s}}  # fmt: skip
    return Job.model_validate(document)


def rows_of(lengths, cap, prompt_tokens):
    return [
        LengthRow(f"p{i // 4}", 0, i % 4, tokens, tokens == cap, float(i % 3 == 0), min(8, prompt_tokens))
        for i, tokens in enumerate(lengths)
    ]


def judged_on_gpus(gpu, model):
    """A job with a judge on a node of GPUs, where this executor has none; what `solve --for any` plans for others."""
    cluster = machines("cuda", gpu, 8, GPUS[gpu].memory_bytes, 1, 64, 2000 * 10**9)
    reward = [{"kind": "math", "workers": 8, "deadline_s": 2.0}, JUDGE]
    sizes = {"prompts_per_step": 4, "samples_per_prompt": 2, "max_prompt_tokens": 64, "max_response_tokens": 200}
    job = job_of(f"Qwen/{model}", "bfloat16", reward, sizes, {"tp": [2], "micro_batch_tokens": [4096]})
    rows = rows_of([20 + 7 * i for i in range(24)], 200, 64)
    options = {"mode": "sync", "for_any": True}
    return cluster, job, with_a_judge(library_profile(gpu, model)), rows, 16, options


def machines(kind, name, per_node, memory_bytes, nodes, cores, host_memory_bytes):
    accelerators = {"kind": kind, "name": name, "per_node": per_node, "memory_bytes": memory_bytes}
    pool = {"nodes": nodes, "accelerators": accelerators, "cores": cores, "host_memory_bytes": host_memory_bytes,
            "usd_per_node_hour": 2.5}  # fmt: skip
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "generated", "pools": {"main": pool}})


@st.composite
def gpus(draw):
    """Machines and a shipped profile of a model that they may be too small for."""
    gpu, model = draw(st.sampled_from(library_names()))
    memory_bytes = round(GPUS[gpu].memory_bytes * draw(st.sampled_from([0.91, 1.0, 1.07])))
    host_memory_bytes = draw(st.sampled_from([200, 1000, 2000])) * 10**9
    cluster = machines("cuda", gpu, 8, memory_bytes, draw(st.sampled_from([1, 2, 4])), 64, host_memory_bytes)
    return cluster, library_profile(gpu, model), f"Qwen/{model}"


@st.composite
def cpus(draw):
    """Machines and a profile as it might be measured on them."""
    cores, nodes = draw(st.sampled_from([2, 4, 8])), draw(st.integers(1, 3))
    host_memory_bytes = draw(st.sampled_from([7, 24, 40, 200])) * 10**9
    space = draw(st.sampled_from([100, 1000])) * 10**6
    layouts = draw(
        st.lists(
            st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 4)).filter(lambda tp_n: math.prod(tp_n) <= cores),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    updates = draw(
        st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from([2048, 4096])), min_size=1, max_size=3, unique=True)
    )
    seconds = st.floats(1e-3, 1e-2)
    entries = tuple(
        rollout(
            tp, engines, draw(seconds), 3e-5, kv_capacity_tokens=draw(st.sampled_from([1, 1, 1, 2])) * space // 4096
        )
        for tp, engines in layouts
    )
    profile = Profile(
        rlplan_profile=1,
        job="generated",
        measured="0" * 64,
        provenance="measured",
        machine=Machine(accelerator="core", kind="cpu", accelerators=cores, cores=cores,
                        host_memory_bytes=host_memory_bytes),
        model_parameters=draw(st.sampled_from([10**6, 10**9])),
        rollout=entries,
        train=tuple(
            Train(dp=dp, micro_batch_tokens=budget, step_s=draw(seconds), step_s_per_token=4e-5 / dp,
                  step_s_per_token_squared=0.0, error=0.03)
            for dp, budget in updates
        ),
        reward=Reward(workers=1, latency=spread(3e-3), per_sample_s=1e-4),
        lengths=ProfileLengths(path="lengths.jsonl", sha256="0" * 64, prompts=6, samples=24, cap_tokens=48, icc=0.5),
        volatile={"measured_at": "2026-01-02T03:04:05Z", "measuring_s": 1.0, "versions": {}},
    )  # fmt: skip
    return machines("cpu", "core", cores, space, nodes, cores, host_memory_bytes), profile, "model"


def written(folder: Path, cluster, job, profile, rows, data_rows) -> Inputs:
    """The case as files, digests included."""
    dump(cluster, folder / "cluster.yaml")
    dump(job, folder / "job.yaml")
    (folder / "data.jsonl").write_text(
        "".join(json.dumps({"id": f"b{k}", "prompt": f"{k}+2", "answer": k + 2}) + "\n" for k in range(data_rows))
    )
    write_lengths(folder / "lengths.jsonl", rows)
    if profile.lengths is not None:
        lengths = profile.lengths.model_copy(
            update={"sha256": sha(folder / "lengths.jsonl"), "cap_tokens": job.rollout.max_response_tokens}
        )
        measured = subject_digest(job, job_paths(job, folder / "job.yaml"))
        profile = profile.model_copy(update={"lengths": lengths, "measured": measured})
    dump(profile, folder / "profile.yaml")

    names = {"cluster": "cluster.yaml", "job": "job.yaml", "profile": "profile.yaml", "lengths": "lengths.jsonl"}
    digests = {key: {"path": name, "sha256": sha(folder / name)} for key, name in names.items()}
    digests["profile"]["provenance"] = profile.provenance
    return Inputs.model_validate(digests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("generated")
    (made / "model").mkdir()
    (made / "model" / "config.json").write_text('{"num_attention_heads": 4, "num_key_value_heads": 4}')
    return made


def passes(folder, case, ends):
    """Solve a case, and count how it ends."""
    *documents, data_rows, options = case
    inputs = written(folder, *documents, data_rows)
    # As files have them, so that what is solved is what is checked.
    cluster, job = load_cluster(folder / "cluster.yaml"), load_job(folder / "job.yaml")
    profile, trace = load(folder / "profile.yaml", Profile), read_lengths(folder / "lengths.jsonl")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = solve(cluster, job, profile, trace, inputs, SolveOptions(prompts=data_rows, **options)).plan
    except Infeasible:
        ends["infeasible"] += 1
        return
    dump(plan, folder / "plan.yaml", digits=WRITTEN_DIGITS)
    report = Checker(datetime.now(UTC)).check_file(str(folder / "plan.yaml"))
    assert [f"{f.rule}: {f.text}" for f in report.findings if not f.warning] == []
    dry = rlplan("execute", folder / "plan.yaml", "--dry-run", "--out", folder / "run")
    kind = cluster.pools["main"].accelerators.kind
    if any(unsupported(plan, model_of_plan(plan, folder / "plan.yaml"), kind)):
        # What the planner knows and this executor has not, as it was asked for.
        assert profile.train_law is not None and options["for_any"] and dry.returncode == 2
        ends["beyond this executor"] += 1
    else:
        assert dry.returncode == 0, dry.stdout + dry.stderr
        ends["passed"] += 1


def ends_of(folder, examples):
    """How so many cases end."""
    ends: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(cases())
    def each(case):
        passes(folder, case, ends)

    each()
    return ends


def test_some_solved_plans_are_sound_and_start(folder):
    assert ends_of(folder, 8)["passed"] >= 1


@pytest.mark.search
def test_every_solved_plan_is_sound_and_starts(folder):
    examples = 80 if settings.default.derandomize else 400  # a second each
    ends = ends_of(folder, examples)
    # What hypothesis draws varies with the modules that are loaded: of 200 cases none to 27 were beyond this executor.
    assert ends["passed"] >= examples / 5, ends


@pytest.mark.parametrize("gpu, model", [("H100", "Qwen2.5-7B"), ("H800", "Qwen2.5-14B")])
def test_a_plan_for_others_is_sound_and_refused_by_this_executor(folder, gpu, model):
    ends: Counter[str] = Counter()
    passes(folder, judged_on_gpus(gpu, model), ends)
    assert ends == {"beyond this executor": 1}
