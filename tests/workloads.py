"""A small workload on two pools, which tests of several rooms start from or break."""

from __future__ import annotations

from pathlib import Path

from rlplan.benchmarks.first_hour.sample_folder import LAB

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
