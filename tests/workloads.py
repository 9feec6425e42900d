"""A small workload on two pools, which tests of several rooms start from or break."""

from pathlib import Path

LAB = """\
rlplan_cluster: 1
name: lab
pools:
  roll:
    nodes: 3
    accelerators: {kind: cuda, name: H20, per_node: 8, memory_bytes: 96000000000}
    cores: 96
    host_memory_bytes: 1000000000000
    usd_per_node_hour: 10.0
    slots: 2
  train:
    nodes: 2
    accelerators: {kind: cuda, name: H800, per_node: 8, memory_bytes: 80000000000}
    cores: 96
    host_memory_bytes: 1000000000000
    usd_per_node_hour: 40.0
links:
  - {pools: [roll, train], stream_bytes_per_s: 2000000000.0}
"""
"""A cluster of two pools."""

WORKLOAD = """\
rlplan_workload: 1
cluster: cluster.yaml
rules: {policy: multi_rate, group_cap: 4}
jobs:
  big:
    slo: 1.5
    model: Qwen2.5-14B
    phases:
      rollout: {pool: roll, mean_s: 200.0, p50_s: 190.0, p95_s: 260.0}
      train: {pool: train, tp: 2, mean_s: 150.0}
  small:
    slo: 1.9
    model: Qwen2.5-3B
    phases:
      rollout:
        pool: roll
        mean_s: 60.0
        ways:
          - {pool: roll, slots: 1, factor: 1.5}
          - {pool: train, factor: 1.1}
      train: {pool: train, mean_s: 40.0}
    tail_share: 0.2
    remaining_s: 36000.0
"""


def write_workload(folder: Path) -> Path:
    """Both documents in a folder; the workload's path."""
    (folder / "cluster.yaml").write_text(LAB)
    (folder / "workload.yaml").write_text(WORKLOAD)
    return folder / "workload.yaml"


def edit(path: Path, old: str, new: str) -> int:
    """Replace the one occurrence; its line."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    path.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1
