"""`rlplan compare`: a table, a page and data of plans side by side; what it refuses, and that it writes no plan."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.copula_trace import copula_lengths
from rlplan.profiles.length_trace import write_lengths

from .command_line import refused, rlplan
from .solved_folder import listing
from .test_shipped import CLUSTER, JOB

QUICK = ("--mode", "sync")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A job on H800s with the shipped profile and lengths, and a second cluster of H100s; the data is only counted."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "h100.yaml").write_text(CLUSTER.replace("NVIDIA H800", "H100").replace("40.0", "20.0"))
    (folder / "job.yaml").write_text(JOB.replace("{path: data.jsonl}", "{prompts: 512}"))
    rows = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8).rows
    write_lengths(folder / "lengths.jsonl", rows)
    assert rlplan("profile", folder, "--shipped", "Qwen2.5-7B").returncode == 0
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "job")


def compared(folder, *options):
    return rlplan("compare", folder, "--trace", folder / "lengths.jsonl", *QUICK, *options)


def test_nodes_are_put_side_by_side_with_what_binds_and_no_plan_is_written(copy):
    before = set(listing(copy))
    result = compared(copy, "--vary", "cluster.pools.main.nodes=1,2", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    one, two = found["points"]
    assert one["values"] == {"cluster.pools.main.nodes": 1} and (one["nodes"], two["nodes"]) == (1, 2)
    assert two["step_s"] < one["step_s"] and two["usd_per_hour"] == 2 * one["usd_per_hour"]
    assert one["length_ratio"] == pytest.approx(1.0, abs=0.02) and "of the step" in one["binds"]
    assert found["fastest"] == 1 and found["cheapest"] in (0, 1)
    assert one["error"] > 0 and [note.split(":")[0] for note in one["assumed"]] == ["rewards-assumed"]
    assert set(listing(copy)) == before


def test_the_text_has_the_error_and_one_line_on_what_is_assumed(copy, monkeypatch):
    for columns in ("80", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = compared(copy, "--vary", "cluster.pools.main.nodes=1,2").stdout.splitlines()
        assert "±" in lines[0].split() and "%" in lines[1]
        (assumed,) = [line for line in lines if line.startswith("assumed: ")]
        assert assumed == "assumed: reward seconds are the shipped ones of kind math, not the job's own"


def test_the_table_names_the_fastest_the_cheapest_and_why_a_point_has_no_plan(copy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = compared(copy, "--vary", "job.rollout.prompts_per_step=16,600")
    assert result.returncode == 2 and "data.prompts: is 512, and a step trains 600" in result.stderr
    result = compared(copy, "--vary", "job.slo.step_p95_s=null,0.001")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["step_p95_s", "mode"] and "binds" in lines[0]
    assert "no plan" in lines[2] and "█" in lines[1]
    assert any(line.startswith("fastest: step_p95_s null; cheapest: step_p95_s null") for line in lines)
    assert any(line.startswith("no plan: step_p95_s 0.001: ") and "p95" in line for line in lines)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = compared(copy, "--vary", "job.slo.step_p95_s=null").stdout.splitlines()
    assert all(len(line) <= 80 for line in narrow[:2]) and "█" in narrow[1] and "binds" not in narrow[0]
    assert any(line.startswith("binds: step_p95_s null: ") for line in narrow)


def test_clusters_of_several_gpus_are_compared_each_by_its_profile_and_drawn_on_a_page(copy):
    page = copy / "page.html"
    clusters = ("--cluster", copy / "cluster.yaml", "--cluster", copy / "h100.yaml")
    result = compared(copy, *clusters, "--html", page, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [point["values"]["cluster"] for point in found["points"]] == ["cluster", "h100"]
    assert found["points"][1]["notes"][0].startswith("costs of H100 by the profile that ships")
    assert found["cheapest"] == 1 and found["html"] == str(page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<figure") == 3 and "Cheapest" in text and "cluster h100" in text
    refused(compared(copy, *clusters, "--html", copy / "h100.yaml"), "h100.yaml", "is an input")


def test_if_no_point_has_a_plan_the_exit_code_says_so_and_the_reasons_are_listed(copy):
    page = copy / "page.html"
    result = compared(copy, "--vary", "job.slo.step_p95_s=0.001,0.002", "--html", page)
    assert result.returncode == 3 and result.stdout.count("no plan: ") == 2 and "Traceback" not in result.stderr
    assert "0 of 2" in page.read_text(encoding="utf-8")
    data = json.loads(compared(copy, "--vary", "job.slo.step_p95_s=0.001", "--json").stdout)
    assert data["fastest"] is None and data["points"][0]["reason"]


def test_nothing_to_compare_a_profile_of_another_model_and_files_that_are_not_there_are_refused(copy):
    refused(compared(copy), "nothing to compare", "--vary")
    refused(compared(copy, "--vary", "cluster.pools.main.node=1,2"), "--vary", "did you mean cluster.pools.main.nodes")
    refused(compared(copy, "--cluster", copy / "none.yaml", "--vary", "cluster.pools.main.nodes=1,2"), "rlplan init")
    (copy / "job.yaml").write_text((copy / "job.yaml").read_text().replace("Qwen2.5-7B-Instruct", "Qwen2.5-72B"))
    refused(compared(copy, "--vary", "cluster.pools.main.nodes=1,2"), "profile.yaml", "Qwen2.5-7B", "72.7B")
    found = compared(copy, "--vary", "job.model.path=Qwen/Qwen2.5-7B,Qwen/Qwen2.5-72B", "--json")
    small, large = json.loads(found.stdout)["points"]
    assert small["step_s"] and (large["reason"] or large["step_s"] > 2 * small["step_s"])
