"""`rlplan compare`: a table, a page and data of plans side by side; what it refuses, and that it writes no plan."""

import re

import pytest

from rlplan.cli.compare import cluster_names

from .command_line import data, printed, refused, rlplan
from .solved_folder import GPU_CLUSTER, edit, listing

NODES = ("--vary", "cluster.pools.main.nodes=1,2")


def compare(folder, *options):
    return ("compare", folder, "--trace", folder / "lengths.jsonl", "--mode", "sync", *options)


def test_nodes_are_put_side_by_side_and_no_plan_is_written(shipped):
    before = set(listing(shipped))
    found = data(*compare(shipped, *NODES))
    one, two = found["points"]
    assert one["values"] == {"cluster.pools.main.nodes": 1} and (one["nodes"], two["nodes"]) == (1, 2)
    assert two["step_s"] != one["step_s"] and two["usd_per_hour"] == 2 * one["usd_per_hour"]
    assert one["length_ratio"] == pytest.approx(1.0, abs=0.02) and "of the step" in one["binds"]
    assert 0 < one["cut_share"] == two["cut_share"] < 0.1
    # Two nodes decode little faster where the tail binds, and transfer weights between them.
    assert (found["fastest"], found["cheapest"]) == (int(two["step_s"] < one["step_s"]), 0)
    assert one["error"] > 0 and [note.split(":")[0] for note in one["assumed"]] == ["rewards-assumed"]
    assert set(listing(shipped)) == before and (found["job"], found["vary"]) == ("math-7b", [NODES[1]])


def test_the_table_names_the_fastest_the_cheapest_and_the_failed(shipped, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    lines = printed(*compare(shipped, "--vary", "job.slo.step_p95_s=null,0.001")).splitlines()
    assert lines[0].split()[:4] == ["step_p95_s", "mode", "s/step", "ms/sample"] and lines[0].endswith(
        "cut  bottleneck"
    )
    assert "±" in lines[0].split() and "█" * 12 in lines[1] and "%" in lines[1]
    assert lines[2].split() == ["0.001", "no", "plan"]
    assert [line for line in lines if line.startswith("assumed: ")] == [
        "assumed: reward seconds are the shipped ones of kind math, not the job's own"
    ]
    assert "fastest: step_p95_s null; cheapest: step_p95_s null" in lines
    assert any(line.startswith("no plan: step_p95_s 0.001: ") and "p95" in line for line in lines)
    assert not any(": bottleneck " in line for line in lines)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = printed(*compare(shipped, "--vary", "job.slo.step_p95_s=null")).splitlines()
    assert all(len(line) <= 80 for line in narrow[:2]) and "█" * 8 in narrow[1] and "bottleneck" not in narrow[0]
    said = " ".join(" ".join(narrow).split())
    assert re.search(
        r"step_p95_s null: bottleneck rollout \d+% of the step.*; [\d.]+% of the trained samples cut at", said
    )
    edit(shipped / "job.yaml", "{path: data.jsonl}", "{prompts: 512}")
    too_many = rlplan(*compare(shipped, "--vary", "job.rollout.prompts_per_step=16,600"))
    refused(too_many, "data.prompts: is 512, and a step trains 600")


def test_clusters_are_compared_by_their_profiles_and_drawn_on_a_page(shipped):
    page, other = shipped / "page.html", shipped / "h100.yaml"
    other.write_text(GPU_CLUSTER.replace("NVIDIA H800", "H100").replace("40.0", "20.0"))
    clusters = ("--cluster", shipped / "cluster.yaml", "--cluster", other)
    found = data("compare", shipped / "cluster.yaml", other, *compare(shipped)[2:], "--html", page)
    assert [point["values"]["cluster"] for point in found["points"]] == ["cluster", "h100"]
    assert found["points"][1]["notes"][0].startswith("costs of H100 by the profile that ships")
    assert found["cheapest"] == 1 and found["html"] == str(page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<figure") == 3 and "Cheapest" in text and "cluster h100" in text
    lines = printed(*compare(shipped, *clusters, "--html", page)).splitlines()
    assert f"html: {page}; open it in a browser" in lines
    [note] = [line for line in lines if line.startswith("note: costs of H100")]
    assert note.endswith(" (cluster h100)"), "it is of that point alone"
    refused(rlplan(*compare(shipped, *clusters, "--html", other)), "h100.yaml", "is an input")
    refused(rlplan("compare", shipped, shipped / "profile.yaml"), "profile.yaml is no cluster file")
    refused(rlplan("compare", *clusters, "--profile", shipped / "none"), "none: no such file")  # its job was found
    refused(rlplan("compare"), "name a job, or a cluster file")
    assert cluster_names(["a", "a"], ("x/a.yaml", "y/a.yaml")) == ["x/a.yaml", "y/a.yaml"]


def test_the_exit_code_says_that_no_point_has_a_plan(shipped):
    page = shipped / "page.html"
    text = printed(*compare(shipped, "--vary", "job.slo.step_p95_s=0.001,0.002", "--html", page), code=3)
    assert text.count("no plan: ") == 2 and "fastest" not in text
    assert "0 of 2" in page.read_text(encoding="utf-8")
    found = data(*compare(shipped, "--vary", "job.slo.step_p95_s=0.001"), code=3)
    assert found["fastest"] is None and found["points"][0]["reason"]


def test_each_model_is_compared_by_its_own_profile(shipped):
    edit(shipped / "job.yaml", "Qwen2.5-7B-Instruct", "Qwen2.5-72B")
    refused(rlplan(*compare(shipped, *NODES)), "profile.yaml", "Qwen2.5-7B", "72.7B")
    small, large = data(*compare(shipped, "--vary", "job.model.path=Qwen/Qwen2.5-7B,Qwen/Qwen2.5-72B"))["points"]
    assert small["step_s"] and (large["reason"] or large["step_s"] > 2 * small["step_s"])
