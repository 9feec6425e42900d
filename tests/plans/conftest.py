"""A folder with a whole set of documents that agree with each other; tests break one thing in it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlplan.plans.check.plan_check import open_plan
from rlplan.plans.facts.digest import job_decisions
from rlplan.plans.schema.plan import load_plan

from ..documents import CLUSTER

JOB = """\
rlplan_job: 1
name: keyhunt
model: {path: model, dtype: float32}
data: {path: data.jsonl, seed: 0}
reward:
  kind: function
  function: "pkg.mod:score"
  workers: 1
  deadline_s: 2.0
  retries: 2
rollout:
  prompts_per_step: 16
  samples_per_prompt: 8
  max_prompt_tokens: 96
  max_response_tokens: 1024
  temperature: 1.0
algorithm:
  name: grpo
  learning_rate: 1e-3
search:
  tp: [1, 2]
  micro_batch_tokens: [1024, 2048, 4096, 8192]
slo: {step_p95_s: null}
"""

PLAN = """\
# yaml-language-server: $schema=.rlplan/plan.schema.json
rlplan: 1
inputs:
  cluster: {path: cluster.yaml, sha256: CLUSTER_SHA}
  job: {path: job.yaml, sha256: JOB_SHA}
  profile: {path: profile.yaml, sha256: PROFILE_SHA, provenance: measured}
  lengths: {path: lengths.jsonl, sha256: LENGTHS_SHA}
solver:
  name: "HiGHS 1.15.1"
  status: optimal
  gap: 0.0
  bound: 0.05
  reached: 0.05
  objective: seconds_per_sample
  candidates: 812
decisions_sha256: DECISIONS
job:
  name: keyhunt
  bias: {mode: exact, budget: 0.0}
  issue: {prompts_per_step: 16, samples_per_prompt: 8}
  rounds:
    short:
      issue: {prompts: 20, samples: 8}
      cutoff_tokens: 288
      long_share: null
      rollout: {pool: main, engines: 2, tp: 1, max_num_seqs: 80, drafts: null}
      train: {dp: 1, tp: 1, pp: 1, cp: 1, ep: 1, micro_batch_tokens: 4096, recompute: none, offload: false}
      hand_over: null
    long:
      issue: {prompts: 16, samples: 8, copies: 3}
      rollout: {pool: main, engines: 1, tp: 2, max_num_seqs: 128, drafts: null}
      train: {dp: 2, tp: 1, pp: 1, cp: 1, ep: 1, micro_batch_tokens: 2048, recompute: none, offload: false}
      hand_over: null
  reward: {workers: 1, deadline_s: 2.0}
  loss: {samples: 128.0, tokens: 23040}
  sync: {checksum_every: 10}
  why:
    cutoff_tokens: "long rounds cost 0.29 x 27 s; at 200 they cost 0.41 x 27 s"
predicted:
  step_s: {p50: 6.1, p95: 7.5, mean: 6.4}
  seconds_per_sample: 0.05
  error: {costs: 0.05, lengths: 0.0, sampling: 0.002}
  baseline:
    step_s: {p50: 9.1, p95: 11.5, mean: 9.4}
    seconds_per_sample: 0.0734
  phases_s: {rollout: 4.5, reward_exposed: 0.1, train: 1.7, sync: 0.1}
  rounds:
    short:
      share: 0.8
      noise: {rollout: 0.0, reward_exposed: 0.0, train: 0.0, sync: 0.0}
      step_s: {p50: 5.0, p95: 6.4, mean: 5.2}
      rollout_s: {p50: 3.1, p95: 4.5, mean: 3.4}
      reward_exposed_s: {p50: 0.1, p95: 0.2, mean: 0.1}
      train_s: {p50: 1.6, p95: 1.8, mean: 1.6}
      sync_s: 0.1
      running: [1.0, 1.0, 1.0, 0.9, 0.9, 0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0.0]
      tail_s: 0.9
      reward_slack_s: 2.5
      memory:
        kv: {needed_bytes: 40000000.0, capacity_bytes: 1000000000.0}
        train: null
    long:
      share: 0.2
      noise: {rollout: 0.0, reward_exposed: 0.0, train: 0.0, sync: 0.0}
      step_s: {p50: 9.9, p95: 11.4, mean: 10.2}
      rollout_s: {p50: 8.1, p95: 9.5, mean: 8.4}
      reward_exposed_s: {p50: 0.1, p95: 0.2, mean: 0.1}
      train_s: {p50: 1.6, p95: 1.8, mean: 1.6}
      sync_s: 0.1
      running: [1.0, 1.0, 1.0, 0.9, 0.9, 0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0.0]
      tail_s: 3.9
      reward_slack_s: 6.5
      memory:
        kv: {needed_bytes: 60000000.0, capacity_bytes: 2000000000.0}
        train: null
  length_ratio: 1.0
  nodes: 1
  usd_per_hour: 0.1
  usd_per_1k_samples: 0.00139
  host_memory: {needed_bytes: 9000000000.0, capacity_bytes: 24000000000.0}
  lengths_tokens: [3, 9, 14, 20, 27, 35, 44, 55, 67, 81, 97, 116, 138, 165, 198, 240, 296, 375, 500, 740, 1024]
  drift: null
  front:
    - {mode: exact, seconds_per_sample: 0.05, usd_per_1k_samples: 0.00139, length_ratio: 1.0, rounds: 160, chosen: true}
volatile: {solved_at: "2026-01-02T03:04:05Z", solve_s: 1.5, rlplan: 0.1.0}
"""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Folder:
    """Documents in a folder."""

    root: Path

    def path(self, name: str) -> Path:
        return self.root / name

    def edit(self, name: str, old: str, new: str) -> int:
        """Replace the one occurrence of `old`; the line number where it begins. A changed input gets its new digest."""
        file = self.path(name)
        before = file.read_text()
        assert before.count(old) == 1, f"{old!r} occurs {before.count(old)} times in {name}"
        file.write_text(before.replace(old, new))
        plan = self.path("plan.yaml")
        plan.write_text(plan.read_text().replace(sha(before), sha(file.read_text())))
        return before[: before.index(old)].count("\n") + 1

    def check(self) -> None:
        """What a command does with a plan before it starts."""
        open_plan(self.path("plan.yaml"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    files = {"cluster.yaml": CLUSTER, "job.yaml": JOB, "profile.yaml": "profile: 1\n", "lengths.jsonl": "{}\n"}
    plan = PLAN
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        plan = plan.replace(name.split(".")[0].upper() + "_SHA", sha(text))
    (tmp_path / "plan.yaml").write_text(plan.replace("DECISIONS", "a" * 64))
    decided = job_decisions(load_plan(tmp_path / "plan.yaml").job)
    (tmp_path / "plan.yaml").write_text(plan.replace("DECISIONS", decided))
    (tmp_path / "data.jsonl").write_text(
        '{"id": "a", "prompt": "1+1", "answer": 2}\n'
        + "".join(f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(511))
    )
    (tmp_path / "model").mkdir()
    config = {"num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return Folder(tmp_path)
