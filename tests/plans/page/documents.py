"""A small plan of groups."""

from __future__ import annotations

GROUPS = """\
rlplan_groups: 1
inputs:
  workload: {path: workload.yaml, sha256: SHA}
  cluster: {path: cluster.yaml, sha256: SHA}
  sources: {}
  previous: {path: running.yaml, sha256: SHA}
solver:
  name: "HiGHS 1.15.1"
  status: optimal
  bound_usd_per_hour: 50.0
  bound_usd_per_unit: null
  gap: 0.0
  universe: "groups of at most 5 jobs"
  columns: 7
  simulated: 40
  fluid_usd_per_hour: 41.5
decisions_sha256: DECIDED
rules: {policy: multi_rate, group_cap: 5, tail_keep: 0.5}
groups:
  g1:
    nodes:
      - {pool: roll, slots: 2, resident_bytes: 630000000000.0, host_memory_bytes: 1500000000000, busy: 0.9}
      - {pool: train, slots: 1, resident_bytes: 500000000000.0, host_memory_bytes: 1500000000000, busy: 0.5}
    jobs:
      big:
        rollout: {pool: roll, units: [0, 1], way: 0, mean_s: 100.0, switch_s: 1.0, resume_s: null}
        train: {pool: train, units: [2], way: 0, mean_s: 60.0, switch_s: 2.0, resume_s: null}
        pace_s: 200.0
        tail_from: 0.7
        tail_units: 1
        slowdown: {mean: 1.2, p50: 1.19, p95: 1.3, slo: 1.5, keeps: true, alone_s: 160.0}
      small:
        rollout: {pool: roll, units: [0, 1], way: 0, mean_s: 60.0, switch_s: 1.0, resume_s: null}
        train: {pool: train, units: [2], way: 0, mean_s: 40.0, switch_s: 2.0, resume_s: null}
        pace_s: 200.0
        tail_from: null
        tail_units: null
        slowdown: {mean: 1.6, p50: 1.59, p95: 1.75, slo: 1.8, keeps: true, alone_s: 100.0}
    usd_per_hour: 50.0
    timeline:
      period_s: 200.0
      repeats: true
      span_s: 200.0
      spans:
        - {job: big, phase: rollout, units: [0, 1], begin_s: 0.0, end_s: 70.0}
        - {job: small, phase: train, units: [2], begin_s: 0.0, end_s: 60.0}
        - {job: big, phase: rollout, units: [0], begin_s: 70.0, end_s: 100.0}
        - {job: small, phase: rollout, units: [1], begin_s: 70.0, end_s: 100.0}
        - {job: small, phase: rollout, units: [0, 1], begin_s: 100.0, end_s: 150.0}
        - {job: big, phase: train, units: [2], begin_s: 100.0, end_s: 190.0}
    why:
      cost: "big, small share nodes for 50.00 USD an hour"
      slack: "small is nearest to its bound: 1.750 (p95) of 1.800"
moves:
  - job: small
    from_group: g2
    to_group: g1
    price_usd: 3.0
    price_s: 90.0
    together: 1
    saves_usd_per_hour: 50.0
    needed: false
declined: null
predicted:
  plan: {usd_per_hour: 50.0, usd_per_unit: 0.7, slo_attained: 1.0, fits: true}
  solo_d: {usd_per_hour: 100.0, usd_per_unit: 1.0, slo_attained: 1.0, fits: false}
  algorithm_1: {usd_per_hour: 60.0, usd_per_unit: 0.8, slo_attained: 1.0, fits: true}
volatile: {solved_at: "2026-01-02T03:04:05Z", solve_s: 1.5, rlplan: 0.1.0}
""".replace("SHA", "a" * 64).replace("DECIDED", "b" * 64)
