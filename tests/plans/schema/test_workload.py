"""The workload document: what it takes, and each fault as one line with file, line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.workload import Workload, load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ...workloads import edit, write_workload

# file, text to replace, text in its place, lines from there to the line at fault, words of the message
CASES = {
    "bound below one": ("workload.yaml", "slo: 1.5", "slo: 0.9", 0, ["jobs.big.slo", "at least 1, not 0.9"]),
    "job given twice": ("workload.yaml", "  small:", "  big:", 0, ["key 'big' is given twice"]),
    "unknown pool": ("workload.yaml", "train: {pool: train, tp: 2", "train: {pool: h100, tp: 2", 0,
        ["jobs.big.phases.train", "no pool 'h100'", "roll, train"]),
    "unknown pool of a way": ("workload.yaml", "{pool: train, factor", "{pool: none, factor", 0,
        ["phases.rollout.ways.1", "no pool 'none'"]),
    "larger than its pool": ("workload.yaml", "train: {pool: train, tp: 2", "train: {pool: train, nodes: 3, tp: 2", 0,
        ["needs 3 nodes, 1 more than pool 'train' has (2)", "at most 2"]),
    "more slots than a node": ("workload.yaml", "slots: 1", "slots: 3", 0, ["has 2 slots, not 3"]),
    "slots of whole nodes only": ("workload.yaml", "{pool: train, factor", "{pool: train, slots: 2, factor", 0,
        ["has 1 slot, not 2"]),
    "one copy on too many": ("workload.yaml", "tp: 2, mean_s", "tp: 16, mean_s", 0, ["16 accelerators", "at most 8"]),
    "one quantile": ("workload.yaml", "p50_s: 190.0, ", "", 0, ["needs p50_s and p95_s; add p50_s"]),
    "quantiles upside down": ("workload.yaml", "p95_s: 260.0", "p95_s: 26.0", 0, ["below p50_s, 190"]),
    "a mean that its quantiles do not allow": ("workload.yaml", "mean_s: 200.0, p50", "mean_s: 2.0, p50", 0,
        ["mean_s is 2,", "between 98.5 and 260"]),
    "a mean beyond its p95": ("workload.yaml", "mean_s: 200.0, p50", "mean_s: 270.0, p50", 0, ["98.5 and 260"]),
    "quantiles of two kinds": ("workload.yaml", "p95_s: 260.0", "p95_s: 26000.0", 0, ["more than 100 times p50_s"]),
    "seconds that overflow": ("workload.yaml", "p95_s: 260.0", "p95_s: 1.0e+300", 0, ["at most 100000000 seconds"]),
    "a factor that vanishes": ("workload.yaml", "factor: 1.1", "factor: 1.0e-300", 0, ["at least 0.001"]),
    "one copy on three of eight": ("workload.yaml", "tp: 2, mean_s", "tp: 3, mean_s", 0,
        ["leaves some of the 8 of a node over", "one of 1, 2, 4, 8"]),
    "one copy on more than half a node": ("workload.yaml", "slots: 1, factor", "slots: 1, tp: 3, factor", 0,
        ["ways.0.tp", "one of 1, 2, 4"]),
    "no seconds": ("workload.yaml", "{pool: train, mean_s: 40.0}", "{pool: train}", 0, ["no seconds", "source"]),
    "seconds from both": ("workload.yaml", "    model: Qwen2.5-3B", "    source: {plan: p.yaml}", 2,
        ["come from the source", "remove"]),
    "source of both kinds": ("workload.yaml", "    model: Qwen2.5-3B", "    source: {plan: p.yaml, run: r}", 0,
        ["write one of the two"]),
    "minutes": ("workload.yaml", "mean_s: 40.0", "mean_min: 2", 0, ["wrong unit", "'mean_s: 120'"]),
    "hours": ("workload.yaml", "remaining_s: 36000.0", "remaining_h: 10", 0, ["wrong unit", "'remaining_s: 36000'"]),
    "unknown key": ("workload.yaml", "tail_share: 0.2", "priority: 2", 0, ["unknown key 'jobs.small.priority'"]),
    "no such policy": ("workload.yaml", "multi_rate", "fair", 0, ["'round_robin', 'first_come' or 'multi_rate'"]),
    "no such cluster": ("workload.yaml", "cluster: cluster.yaml", "cluster: none.yaml", 0, ["no such file"]),
    "negative price": ("cluster.yaml", "usd_per_node_hour: 40.0", "usd_per_node_hour: -40.0", 0,
        ["pools.train.usd_per_node_hour", "at least 0"]),
    "slots that cut an accelerator": ("cluster.yaml", "slots: 2", "slots: 3", 0, ["3 slots do not divide the 8"]),
    "link to nowhere": ("cluster.yaml", "[roll, train]", "[roll, moon]", 0, ["no pool is called 'moon'"]),
    "a price beyond numbers": ("cluster.yaml", "usd_per_node_hour: 40.0", "usd_per_node_hour: 1.0e+18", 0,
        ["at most 1000000 USD per node and hour"]),
    "a link without bytes": ("cluster.yaml", "stream_bytes_per_s: 2000000000.0", "stream_bytes_per_s: 0", 0,
        ["at least 1000 bytes per second, not 0"]),
    "link twice": ("cluster.yaml", "links:\n", "links:\n  - {pools: [train, roll], stream_bytes_per_s: 1.0e+9}\n", 2,
        ["are linked twice"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_reported_at_its_line_with_its_remedy(tmp_path: Path, case: str) -> None:
    path = write_workload(tmp_path)
    name, old, new, offset, words = CASES[case]
    line = edit(tmp_path / name, old, new) + offset
    with pytest.raises(InputError) as caught:
        load_workload(path)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    assert text.startswith(f"{tmp_path / name}:{line}: "), text


def test_a_sound_workload_is_read_with_its_cluster_and_written_canonically(tmp_path: Path) -> None:
    workload, cluster = load_workload(write_workload(tmp_path))
    assert sorted(workload.jobs) == ["big", "small"]
    assert cluster == load_cluster(tmp_path / "cluster.yaml")
    text = dump(workload)
    assert loads(text, Workload) == workload and dump(loads(text, Workload)) == text


def test_a_job_in_place_of_a_workload_is_called_that(tmp_path: Path) -> None:
    write_workload(tmp_path)
    with pytest.raises(InputError, match=r"is a cluster .*, and a workload \('rlplan_workload'\) is needed"):
        load_workload(tmp_path / "cluster.yaml")
