"""The GPU check: what a cut leaves, what its seconds last for, the policy's lengths, and its cheap parts on a CPU."""

import json
import random
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from rlplan.benchmarks.gpu_check import decode_part, pack
from rlplan.benchmarks.gpu_check.plans_part import (
    ROOT,
    JsonLines,
    Parts,
    Told,
    end_of,
    execute_figures,
    job_figures,
    merged,
    run_parts,
    stand_in,
)
from rlplan.benchmarks.gpu_check.random_policy import (
    SHAPES,
    SPECIAL,
    TAIL_EVERY,
    TAILS,
    drawn_lengths,
    job_document,
    law_of,
    length_rows,
    prompt_rows,
)
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.profile_schema import Profile

from ..docs.cluster_files import until


def test_lines_told_before_a_cut_merge_to_the_result(tmp_path):
    printed = []
    told = Told(tmp_path / "lines.jsonl", printed.append, 0.0)
    told.tell({"update": {"0.5b": {"mfu": 0.3}}})
    told.tell({"update": {"1.5b": {"mfu": 0.4}}, "execute": {"sync": {"steps": 1}}})
    told.tell({"execute": {"sync": {"steps": 2}}})
    read = {}
    for line in (tmp_path / "lines.jsonl").read_text().splitlines():
        assert line in printed
        read = merged(read, json.loads(line))
    assert read.pop("at_s") > 0
    assert read == told.result
    assert read == {"update": {"0.5b": {"mfu": 0.3}, "1.5b": {"mfu": 0.4}}, "execute": {"sync": {"steps": 2}}}


def test_parts_run_in_order_while_their_seconds_last():
    left, ran, told = [100.0], [], []

    def part(name, takes_s, fails=False):
        def work():
            ran.append(name)
            left[0] -= takes_s
            if fails:
                raise RunFailed("no room on the GPU")

        return work

    works = {
        "attention": part("attention", 30.0),
        "decode": part("decode", 30.0, fails=True),
        "execute": part("execute", 30.0),
        "profile": part("profile", 30.0),
    }
    run_parts(works, dict(zip(works, (40.0, 70.0, 41.0, 40.0), strict=True)), lambda: left[0], told.append)
    assert ran == ["attention", "decode", "profile"]
    failed, skipped = told
    assert failed == {"failed": {"decode": "RunFailed: no room on the GPU"}}
    assert skipped == {"skipped": {"execute": "takes at least 41 s, and 40 of --seconds are left"}}


def test_a_cut_check_prints_what_is_known_and_ends_its_parts(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--json", "--out", str(out)]
    check = subprocess.Popen([*command, "--part", "attention"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until(lambda: (out / "trainer.out").exists())  # nothing empties it from now on
    (out / "trainer.out").write_text('{"machine": {"cores": 3}}\n')
    until(lambda: (out / "lines.jsonl").exists())
    check.send_signal(signal.SIGTERM)
    printed = check.communicate()[0].splitlines()
    result = json.loads(printed[-1])
    assert check.returncode == 1
    assert result["machine"]["cores"] == 3 and result["cut"].startswith("after ")
    assert json.loads(printed[0])["machine"] == {"cores": 3}


def test_json_lines_are_read_once_and_when_they_are_whole(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = JsonLines(path)
    assert lines.new() == []
    path.write_bytes(b'warning: [1]\n{"a": 1}\n{"b": ')
    assert lines.new() == [{"a": 1}]
    assert lines.new() == []
    with path.open("ab") as file:
        file.write(b'2}\n[3]\n{"c": 3}')
    assert lines.new() == [{"b": 2}]


def test_lengths_follow_the_medians_of_usual_and_long_responses():
    tail, count = TAILS["cuda"], 4000
    usual = drawn_lengths(tail, 1, [1] * count)
    long = drawn_lengths(tail, 2, [0] * count)
    assert statistics.median(usual) == pytest.approx(tail.usual, rel=0.05)
    assert statistics.median(long) == pytest.approx(tail.long, rel=0.1)
    assert max(usual) < 3 * tail.usual
    assert max(long) == tail.cap
    law = law_of(tail)
    assert law.logit(tail.usual, law.usual) > law.logit(tail.usual, law.long)


def test_prompts_keep_their_limit_and_begin_with_the_mark_of_their_lengths():
    rows = prompt_rows(512, seed=3)
    for index, row in enumerate(rows):
        mark, *drawn = row["prompt"].split()
        assert mark == ("<usual>" if index % TAIL_EVERY else "<long>")
        assert all(len(SPECIAL) <= int(word[1:]) < 512 for word in drawn)
        assert 2 <= 1 + len(drawn) <= job_document("cuda", TAILS["cuda"]).rollout.max_prompt_tokens
    lengths = length_rows(job_document("cpu", TAILS["cpu"]), TAILS["cpu"], 0)
    assert {row["id"] for row in rows} == {row["prompt"] for row in lengths}


def test_a_stand_in_for_a_profile_is_of_its_shape_and_machine(tmp_path):
    gpu = {"kind": "cuda", "name": "NVIDIA-H100-80GB-HBM3", "per_node": 1, "memory_bytes": 80 * 10**9}
    pool = {"nodes": 1, "cores": 16, "host_memory_bytes": 10**11, "usd_per_node_hour": 0.1, "accelerators": gpu}
    cluster = {"rlplan_cluster": 1, "name": "here", "pools": {"main": pool}}
    (tmp_path / "cluster.yaml").write_text(json.dumps(cluster))
    profiles = [load(stand_in(tmp_path, SHAPES[name], [8192, 16384]), Profile) for name in ("0.5b", "1.5b")]
    small, large = profiles
    assert small.rollout[0].kv_bytes_per_token == 2 * 24 * 2 * 2 * 64
    assert [entry.micro_batch_tokens for entry in small.train] == [8192, 16384]
    # 6 operations a parameter and token, at 0.3 of 989e12 a second
    assert small.train[0].step_s_per_token == pytest.approx(6 * SHAPES["0.5b"].parameters / (0.3 * 989e12), rel=1e-3)
    assert large.train[0].step_s_per_token > 2 * small.train[0].step_s_per_token


def test_what_runs_did_is_told_step_by_step():
    def step(kind, total_s, difference):
        metrics = {"logprob_mean_abs_diff": difference, "tokens": 100.0}
        return {"event": "step", "kind": kind, "total_s": total_s, "rollout_s": 1.0, "train_s": 0.5, "sync_s": 0.1,
                "metrics": metrics, "weights_way": "broadcast", "weights_slots": "ipc"}  # fmt: skip

    first = execute_figures({"sync": [step("short", 6.0, 0.01)], "exact": []})
    assert first["sync"]["steps"] == 1 and "exact" not in first and first["logprob_mean"] == 0.01
    both = execute_figures(
        {
            "sync": [step("short", 6.0, 0.01), step("short", 8.0, 0.02)],
            "exact": [step("short", 2.0, 0.03), step("long", 5.0, 0.0)],
        }
    )
    assert both["exact"]["kinds"] == {"long": 1, "short": 1}
    assert both["exact"]["step_ratio"] == 2.0
    assert both["logprob_mean"] == 0.03
    assert both["sync"]["weights"] == ["broadcast ipc"]


def test_decode_tells_ratio_and_slope_of_its_two_sides():
    import asyncio

    def side(start_s, step_s):
        async def seconds(batch):
            # The first turn is slower: the faster one counts.
            return start_s + batch.tokens * step_s * batch.sequences + (0.5 if batch.seed == 0 else 0.0)

        return seconds

    sides = {"ours": side(1.0, 0.01), "seeded": side(2.0, 0.01), "vllm": side(0.2, 0.01)}
    found = asyncio.run(decode_part.measured(sides, 4, 10, 30))
    assert found["step_s"] == pytest.approx(0.04)
    assert found["of_vllm"] == pytest.approx(1.4 / 2.2, abs=1e-4)
    assert found["tokens_per_s"] == pytest.approx(4 * 30 / 2.2)
    assert found["seeded_of_vllm"] == pytest.approx(1.4 / 3.2, abs=1e-4)
    assert "of_vllm" not in asyncio.run(decode_part.measured({"vllm": sides["vllm"]}, 4, 10, 30))
    assert decode_part.slopes({32: 0.004, 1: 0.0009, 256: 0.0264}) == {
        "1-32": pytest.approx(1e-4),
        "32-256": pytest.approx(1e-4),
    }


def test_attention_and_updates_are_measured_on_a_cpu(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from rlplan.benchmarks.gpu_check import trainer_part
    from rlplan.benchmarks.gpu_check.random_policy import TINY, Tail, make_model

    monkeypatch.setitem(trainer_part.ROW_TOKENS, "cpu", 300)
    monkeypatch.setitem(trainer_part.PRODUCT, "cpu", 64)
    figures = trainer_part.attention_figures(tmp_path / "layer", TINY, "cpu")
    assert figures["new_over_seen"] > 0 and len(figures["new_s"]) == len(figures["seen_s"]) == 3
    make_model(TINY, "cpu", torch.float32, 128).save_pretrained(tmp_path / "model")
    update = trainer_part.update_figures(tmp_path / "model", TINY, "cpu", Tail(40, 5, 20))
    assert update["mfu"] > 0 and update["tokens"] > 4 * 8
    assert len(update["seconds"]) == trainer_part.UPDATES


def test_the_policy_ends_responses_about_as_its_law_says():
    torch = pytest.importorskip("torch")
    from rlplan.benchmarks.gpu_check.random_policy import EOS, LONG, TINY, USUAL, let_responses_end, make_model

    tail = TAILS["cpu"]
    model = make_model(TINY, "cpu", torch.float32, 512)
    let_responses_end(model, tail)
    tokens = torch.randint(len(SPECIAL), TINY.vocab, (64, 2 * tail.usual), generator=torch.Generator().manual_seed(1))
    chances = {}
    for mark in (USUAL, LONG):
        tokens[:, 0] = mark
        with torch.no_grad():
            chances[mark] = torch.softmax(model(input_ids=tokens).logits, -1)[..., EOS].mean(0)
    early, late = chances[USUAL][8:16].mean(), chances[USUAL][-8:].mean()
    assert late > 4 * early  # few end long before the median, few go on long after it
    assert chances[LONG][8:].mean() < chances[USUAL][8:].mean() / 4


def test_a_job_of_the_group_tells_its_turns_and_switches():
    permits = [
        {"event": "permit", "phase": phase, "waited_s": 1.0, "switch_in_s": seconds, "switch_out_s": 2 * seconds}
        for phase, seconds in (("rollout", 0.1), ("train", 0.3), ("rollout", 0.2))
    ]
    figures = job_figures([*permits, {"event": "step", "total_s": 4.0}])
    assert (figures["steps"], figures["turns"], figures["waited_s"], figures["step_s"]) == (1, 3, 3.0, 4.0)
    assert figures["switch_in_s"] == {"rollout": pytest.approx(0.15), "train": 0.3}
    assert figures["switch_out_s"] == {"rollout": pytest.approx(0.3), "train": 0.6}
    assert job_figures([])["step_s"] is None


def test_the_stack_that_ray_writes_at_its_end_hides_nothing():
    stack = [
        "*** SIGTERM received at time=1795708173 on cpu 14 ***",
        "PC: @     0x7fc50552a2d2  (unknown)  epoll_wait",
        "    @           0x6d46d7        128  (unknown)",
        "[2026-11-26 15:49:33,979 E 818 818] logging.cc:474:     @           0x657a05  (unknown)  _start",
    ] * 5
    assert end_of("\n".join(["profile: prefill", "", *stack])) == "profile: prefill"


def test_a_part_that_fails_or_is_late_leaves_no_process(tmp_path):
    told = []
    parts = Parts("cpu", tmp_path, float("inf"), told.append)

    def part(code, most_s=30.0):
        return parts.run("part", sys.executable, "-c", code, most_s=most_s), told[-1].get("failed", {}).get("part")

    assert part("print('{}')") == (True, None)
    assert parts.outputs == {"part": "{}\n"}
    failed = part("import sys; print('first', file=sys.stderr); sys.exit('no room on the GPU')")
    assert failed == (False, "exit code 1\nfirst\nno room on the GPU")
    # A process that the part starts in a session of its own is ended with it.
    child = tmp_path / "child"
    begun = f"import os, pathlib, time; pathlib.Path({str(child)!r}).write_text(str(os.getpid())); time.sleep(60)"
    starts = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {begun!r}], start_new_session=True)"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(child)!r}).exists(): time.sleep(0.01)\ntime.sleep(60)"
    ok, why = part(f"{starts}\n{waits}", 1.0)
    assert not ok and why.startswith("not done within 1 s")
    if child.exists() and (pid := child.read_text()):  # a busy machine may not have come so far
        until(lambda: not command_line(int(pid)))


def command_line(pid):
    """Empty for a process that has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_figures_of_a_part_are_told_though_it_fails_afterwards(tmp_path):
    told = []
    parts = Parts("cpu", tmp_path, float("inf"), told.append)
    code = "import sys; print('{\"update\": 1}', flush=True); sys.exit('out of memory')"
    assert not parts.run("trainer", sys.executable, "-c", code, fragments=True)
    assert told[0] == {"update": 1}
    assert told[1]["failed"] == {"trainer": "exit code 1\nout of memory"}


def test_archives_hold_all_but_kernels_which_travel_in_parts(tmp_path):
    site, out = tmp_path / "site", tmp_path / "out"
    out.mkdir()
    noise = random.Random(0).randbytes(30_000)  # it cannot be compressed
    for name in ("vllm/engine.py", *pack.KERNELS):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(noise if name in pack.KERNELS else b"small")
    pack.archive(site, out, "3-vllm", ("vllm", "xgrammar"), 20_000)
    pack.archive(site, out, "4-kernels", pack.KERNELS, 20_000)
    assert sorted(path.name for path in out.iterdir())[:2] == ["3-vllm.tar.xz", "4-kernels.tar.xz.00"]
    assert all(path.stat().st_size <= 20_000 for path in out.iterdir())
    there = tmp_path / "there"
    there.mkdir()
    for name in ("3-vllm", "4-kernels"):
        subprocess.run(f"cat {out}/{name}.tar.xz* | tar -xJ -C {there}", shell=True, check=True)
    for name in ("vllm/engine.py", *pack.KERNELS):
        assert (there / name).read_bytes() == (site / name).read_bytes()
    with pytest.raises(RunFailed, match="no-such-command is not here"):
        pack.command("no-such-command")
