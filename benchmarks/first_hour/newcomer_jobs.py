"""The documents of three jobs, as a new user of rlplan with GPUs would write them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.copula_trace import copula_lengths
from rlplan.profiles.length_trace import write_lengths

PROMPTS = 2048


@dataclass(frozen=True)
class Newcomer:
    """A job of a new user.

    Attributes:
        name: of the job.
        model: hub id.
        shipped: name of the shipped profile, for `profile --shipped`.
        nodes: how many, with 8 H100s each.
        reward: kind of reward.
        cap_tokens: longest response.
        tp: tensor-parallel sizes to consider.
    """

    name: str
    model: str
    shipped: str
    nodes: int
    reward: str
    cap_tokens: int
    tp: tuple[int, ...]


JOBS = (
    Newcomer("math-32b", "Qwen/Qwen2.5-32B-Instruct", "Qwen2.5-32B", 8, "math", 16384, (2, 4, 8)),
    Newcomer("code-7b", "Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B", 2, "code", 8192, (1, 2)),
    Newcomer("moe-30b", "Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B", 4, "math", 16384, (2, 4)),
)


def write_job(folder: Path, job: Newcomer) -> None:
    """Write cluster.yaml, job.yaml, data.jsonl and lengths.jsonl of `job` into `folder`, which is made."""
    folder.mkdir(parents=True)
    (folder / "cluster.yaml").write_text(
        f"""\
rlplan_cluster: 1
name: ours
pools:
  h100:
    nodes: {job.nodes}
    accelerators: {{kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}}
    cores: 112
    host_memory_bytes: 2000000000000
    usd_per_node_hour: 20.4
"""
    )
    (folder / "job.yaml").write_text(
        f"""\
rlplan_job: 1
name: {job.name}
model: {{path: {job.model}, dtype: bfloat16}}
data: {{path: data.jsonl}}
reward: {{kind: {job.reward}, workers: 64, deadline_s: 10.0}}
rollout:
  {{prompts_per_step: 128, samples_per_prompt: 8, max_prompt_tokens: 1024, max_response_tokens: {job.cap_tokens}}}
algorithm: {{name: grpo, learning_rate: 1.0e-6}}
search: {{tp: {list(job.tp)}, micro_batch_tokens: [{job.cap_tokens + 1024}, {2 * job.cap_tokens + 2048}]}}
"""
    )
    form = "assert double({}) == {}" if job.reward == "code" else "{1}"
    rows = [{"id": f"p{i}", "prompt": f"What is {i} + {i}?", "answer": form.format(i, 2 * i)} for i in range(PROMPTS)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # The median is an eighth of the cap, and a hundredth of the responses is cut: a heavy tail, as of reasoning models.
    cap = job.cap_tokens
    lengths = copula_lengths([(cap / 64, 0.05), (cap / 8, 0.5), (cap / 2, 0.9), (cap, 0.99)], 0.5, cap, 128, 8)
    write_lengths(folder / "lengths.jsonl", lengths.rows)
