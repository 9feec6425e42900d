"""The GPU check: which shapes the minutes last for, what its parts and traces say, and wheels that travel in parts."""

import json
import math
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rlplan.benchmarks.gpu_check import wheel_parts, wheels
from rlplan.benchmarks.gpu_check.check_result import assembled, run_figures, trace_lines, untried_ways
from rlplan.benchmarks.gpu_check.command_parts import Part, end_of, run_part
from rlplan.benchmarks.gpu_check.group_check import job_figures
from rlplan.benchmarks.gpu_check.memory_watch import Sample, changes, turn_figures
from rlplan.benchmarks.gpu_check.random_policy import job_document, prompt_rows, words
from rlplan.benchmarks.gpu_check.shape_check import batches
from rlplan.benchmarks.gpu_check.shapes import SHAPES, chosen, reason_against
from rlplan.benchmarks.gpu_check.stand_in import stand_in, write_stand_in
from rlplan.benchmarks.gpu_check.weight_slots import figures_of
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.library import library_profile

from ..docs.cluster_files import until

H100 = 80 * 2**30


def test_shapes_are_tried_smallest_first():
    assert [shape.name for shape in chosen("7b, 0.5B,1.5b")] == ["0.5b", "1.5b", "7b"]
    sizes = [shape.architecture.parameters for shape in SHAPES.values()]
    assert sizes == sorted(sizes)
    for wrong in ("3b", "", "0.5b;7b"):
        with pytest.raises(InputError, match="write some of tiny, "):
            chosen(wrong)


def test_a_shape_is_not_begun_without_its_minutes_or_its_memory():
    small, large = SHAPES["0.5b"], SHAPES["7b"]
    assert reason_against(small, 60 * small.minutes, [H100]) is None
    assert "minutes" in str(reason_against(small, 60 * small.minutes - 1, [H100]))
    assert reason_against(large, math.inf, [H100]) is None
    assert "GiB of one GPU" in str(reason_against(large, math.inf, [H100, 48 * 10**9]))  # 8 bytes of 7.6e9 parameters
    assert reason_against(SHAPES["tiny"], math.inf, []) is None


def test_plans_run_one_by_one_where_trainers_lack_room(tmp_path):
    plans = [tmp_path / f"{mode}.yaml" for mode in ("sync", "exact", "race")]
    shape = SHAPES["1.5b"]  # 12 bytes of 1.5e9 parameters wait for each plan
    assert batches(plans, shape, 60e9) == [plans]
    assert batches(plans, shape, 50e9) == [[plan] for plan in plans]


def test_a_stand_in_for_a_profile_is_of_its_shape(tmp_path):
    shape = SHAPES["0.5b"]
    shipped = library_profile("H100", "Qwen2.5-7B")
    profile = stand_in(shipped, shape)
    (entry,) = profile.rollout
    assert (entry.tp, entry.kv_bytes_per_token) == (1, 2 * 24 * 2 * 2 * 64)
    assert entry.step_s < shipped.rollout[0].step_s
    assert profile.model_parameters == shape.architecture.parameters
    assert profile.provenance == "derived"
    pool = {"nodes": 1, "cores": 2, "host_memory_bytes": 10**10, "usd_per_node_hour": 0.1,
            "accelerators": {"kind": "cpu", "name": "a CPU", "per_node": 2, "memory_bytes": 10**9}}  # fmt: skip
    cluster = {"rlplan_cluster": 1, "name": "here", "pools": {"main": pool}}
    (tmp_path / "cluster.yaml").write_text(json.dumps(cluster))
    with pytest.raises(InputError, match="'a CPU' ships"):
        write_stand_in(tmp_path, shape)


def test_every_token_has_a_word_and_prompts_keep_their_limit():
    vocabulary = words(512)
    assert len(set(vocabulary)) == 512
    for row in prompt_rows(512, seed=3):
        drawn = row["prompt"].split()
        assert set(drawn) <= set(vocabulary[3:])
        assert 8 <= len(drawn) <= job_document("cuda").rollout.max_prompt_tokens


def test_freed_bytes_of_a_turn_are_those_between_the_samples_around_it():
    free = [100, 100, 100, 40, 900, 900]
    lengths = [10, 10, 10, 10, 30, 30]
    samples = [Sample(float(i), f, {"sync": n}) for i, (f, n) in enumerate(zip(free, lengths, strict=True))]
    # The line of the turn ends at byte 30, is first seen at 4 s, and the turn took 1.5 s: 2 s is before it.
    assert changes(samples, "sync", [(30, 1.5)]) == [800]
    assert changes(samples, "sync", [(31, 1.5), (30, 9.0)]) == [None, None]  # never seen; began before the samples
    event = {"event": "turn", "turn": "engine_sleeps", "seconds": 1.5, "device_bytes": 850.0}
    figures = turn_figures({"sync": [(10, {"event": "run"}), (30, event)]}, samples)
    assert figures == {"engine_sleeps": {"times": 1, "seconds": 1.5, "planned_bytes": 850.0, "freed_bytes": 800}}


def test_figures_of_a_run_are_its_report_and_how_its_weights_went(tmp_path):
    events = [
        {"event": "step", "sync_s": 1.0, "weights_way": "broadcast", "weights_bytes": 7, "weights_slots": "ipc"},
        {"event": "weights", "way": "file", "reason": "a rank is gone"},
        {"event": "step", "sync_s": 3.0, "weights_way": "file", "weights_bytes": 7},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "st')
    lines = trace_lines(trace)
    assert [event for _, event in lines] == events
    figures = run_figures({"runs": {"sync": {"step_s": 2.0, "series": []}}}, {"sync": lines})
    weights = {"ways": {"broadcast": 1, "file": 1}, "slots": {"ipc": 1}, "bytes": 7, "sync_s": 2.0}
    assert figures == {"sync": {"step_s": 2.0, "weights": weights | {"reasons": ["a rank is gone"]}}}


def test_a_failed_part_or_a_bad_run_makes_the_result_bad():
    good = {"parts": {"write": {"ok": True}}, "runs": {"sync": {"on_policy_violations": 0}}}
    assert assembled({}, {"tiny": good}, {})["ok"]
    assert not assembled({}, {}, {"7b": "too large"})["ok"]
    failed = {"parts": {"write": {"ok": True}, "profile": {"ok": False}}}
    result = assembled({}, {"tiny": good, "7b": failed}, {})
    assert (result["failed"], result["ok"]) == (["7b profile"], False)
    broken = {**good, "runs": {"race": {"on_policy_violations": 2}}}
    assert assembled({}, {"tiny": broken}, {})["broken"] == ["tiny race: on_policy_violations"]
    grouped = assembled({}, {"tiny": good}, {}, group={"parts": {"execute": {"ok": False}}})
    assert (grouped["failed"], grouped["ok"]) == (["groups execute"], False)


def test_a_job_of_the_group_tells_its_turns_and_switches():
    permits = [
        {"event": "permit", "phase": phase, "waited_s": 1.0, "switch_in_s": seconds, "switch_out_s": 2 * seconds}
        for phase, seconds in (("rollout", 0.1), ("train", 0.3), ("rollout", 0.2))
    ]
    step = {"event": "step", "total_s": 4.0, "sync_s": 0.5, "weights_way": "broadcast", "weights_slots": "ipc"}
    figures = job_figures([(0, event) for event in (*permits, step)])
    assert (figures["steps"], figures["turns"], figures["waited_s"], figures["step_s"]) == (1, 3, 3.0, 4.0)
    assert figures["switch_in_s"] == {"rollout": pytest.approx(0.15), "train": 0.3}
    assert figures["switch_out_s"] == {"rollout": pytest.approx(0.3), "train": 0.6}
    assert figures["weights"]["slots"] == {"ipc": 1}
    assert job_figures([])["step_s"] is None


def test_what_one_device_cannot_show_is_named_with_the_reason():
    refused = "NCCL refuses two ranks on one GPU, and 1 is there"
    one = {"host": {"mismatches": 0}, "ipc": {"mismatches": 0}, "nccl": {"untried": refused}}
    assert untried_ways("cuda", ["broadcast"], one, ["ipc"]) == {
        "nccl": refused,
        "weights by file": "no run of the check used it",
    }
    two = one | {"nccl": {"mismatches": 0}}
    assert "plain processes" in untried_ways("cuda", [], two, ["ipc"])["nccl with engines"]
    assert set(untried_ways("cpu", ["broadcast"], {}, ["host"])) == {"sleep", "nccl", "ipc", "weights by file"}


def test_weights_by_other_slots_than_asked_for_make_the_result_bad():
    good = {"parts": {}, "runs": {"sync": {"weights": {"slots": {"ipc": 4}}}}}
    assert assembled({}, {"tiny": good}, {}, {"ipc": {"mismatches": 0}}, "ipc")["ok"]
    assert assembled({}, {"tiny": good}, {}, {"ipc": {"error": "no handle"}})["failed"] == ["weights by ipc"]
    assert assembled({}, {"tiny": good}, {}, {"ipc": {"mismatches": 2}})["failed"] == ["weights by ipc"]
    other = assembled({}, {"tiny": good}, {}, {}, "nccl")
    assert (other["broken"], other["ok"]) == (["tiny sync: weights by ipc, not nccl"], False)
    said = Part(False, 1.0, "exit code 1", 'warning\n{"slots": {"ipc": {"error": "no handle"}}}\n')
    assert figures_of(said, "ipc") == {"error": "no handle"}
    assert figures_of(Part(False, 1.0, "exit code 1: no torch"), "ipc") == {"error": "exit code 1: no torch"}


def test_the_stack_that_ray_writes_at_its_end_hides_nothing():
    stack = [
        "*** SIGTERM received at time=1795708173 on cpu 14 ***",
        "PC: @     0x7fc50552a2d2  (unknown)  epoll_wait",
        "    @           0x6d46d7        128  (unknown)",
        "[2026-11-26 15:49:33,979 E 818 818] logging.cc:474:     @           0x657a05  (unknown)  _start",
    ] * 5
    assert end_of("\n".join(["profile: prefill", "", *stack])) == "profile: prefill"


def test_a_part_that_fails_or_is_late_leaves_no_process(tmp_path):
    def part(code, deadline_s=30.0):
        return run_part([sys.executable, "-c", code], deadline_s, tmp_path / "log", os.environ, tmp_path)

    assert part("print('{}')").output == "{}\n"
    failed = part("import sys; print('first', file=sys.stderr); sys.exit('no room on the GPU')")
    assert (failed.ok, failed.error) == (False, "exit code 1\nfirst\nno room on the GPU")
    # A process that the part starts in a session of its own is ended with it.
    child = tmp_path / "child"
    begun = f"import os, pathlib, time; pathlib.Path({str(child)!r}).write_text(str(os.getpid())); time.sleep(60)"
    starts = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {begun!r}], start_new_session=True)"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(child)!r}).exists(): time.sleep(0.01)\ntime.sleep(60)"
    late = part(f"{starts}\n{waits}", 1.0)
    assert not late.ok and late.error.startswith("not done within 1 s")
    if child.exists() and (pid := child.read_text()):  # a busy machine may not have come so far
        until(lambda: not command_line(int(pid)))


def command_line(pid):
    """Empty for a process that has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_wheels_in_parts_are_verified_joined_and_given_to_pip(tmp_path):
    folder = tmp_path / "carried"
    (folder / "wheels").mkdir(parents=True)
    large, small = random.Random(1).randbytes(2500), b"small"
    (folder / "wheels" / "large-1-py3-none-any.whl").write_bytes(large)
    (folder / "wheels" / "small-1-py3-none-any.whl").write_bytes(small)
    manifest = wheel_parts.prepare(folder, 1000, {"python": "3.12"})
    assert manifest["largest"] == 999
    assert manifest["split"] == ["large-1-py3-none-any.whl"]
    sizes = sorted(path.stat().st_size for path in (folder / "wheels").iterdir())
    assert sizes == [5, 502, 999, 999]
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)

    def install():
        return subprocess.run(["sh", folder / "install.sh", python], capture_output=True, text=True, check=False)

    for _ in range(2):  # a second time finds the joined file
        done = install()
        assert done.returncode == 0, done.stderr
        joined = "wheels/large-1-py3-none-any.whl wheels/small-1-py3-none-any.whl"
        assert done.stdout == f"-m pip install --no-index --no-deps {joined}\n"
        assert (folder / "wheels" / "large-1-py3-none-any.whl").read_bytes() == large
    part = folder / "wheels" / "large-1-py3-none-any.whl.part-001"
    part.write_bytes(part.read_bytes()[:-1] + bytes([part.read_bytes()[-1] ^ 1]))
    assert install().returncode != 0


def test_what_the_machine_has_is_left_out_with_all_that_it_needs():
    def package(name, version, *needs):
        return {"metadata": {"name": name, "version": version, "requires_dist": list(needs)}}

    report = {
        "environment": {"python_version": "3.12", "sys_platform": "linux"},
        "install": [
            package("vllm", "0.24.0", "torch==2.11.0", "einops", "numpy"),
            package("torch", "2.11.0", "cuda-toolkit[cudart]", 'colour; sys_platform == "win32"'),
            package("cuda-toolkit", "13.0", 'Nvidia_CUDA.Runtime; extra == "cudart"', 'nvidia-nvcc; extra == "nvcc"'),
            package("nvidia-cuda-runtime", "13.0"),
            package("nvidia-nvcc", "13.0"),
            package("transformers", "5.19.0", "numpy"),
            package("numpy", "2.3.5"),
            package("einops", "0.8.2"),
        ],
    }
    carried, left_out = wheels.lacking(report, None)
    assert carried == {"einops": "0.8.2", "nvidia-nvcc": "13.0", "vllm": "0.24.0"}
    assert left_out == ["cuda-toolkit", "numpy", "nvidia-cuda-runtime", "torch", "transformers"]
    has = wheels.frozen("torch==2.11.0+cu130\nNumPy==2.0.0\n-e ./mine\npip @ file:///x\neinops==0.8.2  # kept\n")
    assert has == {"torch": "2.11.0", "numpy": "2.0.0", "einops": "0.8.2"}
    carried, left_out = wheels.lacking(report, has)
    assert left_out == ["einops", "torch"]
    assert carried["numpy"] == "2.3.5"


def test_what_is_carried_for_rlplan_is_what_its_gpu_extra_asks_for():
    needs = wheels.wanted()
    assert needs[0] == "vllm==0.24.0"
    assert sum(need.startswith("vllm") for need in needs) == 1
    assert {"ray", "pulp", "safetensors"} <= {need.split(">")[0] for need in needs}
