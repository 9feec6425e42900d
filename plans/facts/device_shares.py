"""Which share of a GPU's memory engines take and how much of it may be planned: one number for profiles, planner and
executor."""

from __future__ import annotations

ENGINE_SHARE = 0.9
"""Of a GPU's memory an awake engine takes this share (vLLM's gpu_memory_utilization, whose default it is)."""

ASLEEP_SHARE = 0.05
"""Of a GPU's memory that is for contexts, communicators and captured graphs of whoever sleeps beside the one who is
awake: a sleeping vLLM engine keeps its context and communicators (1.3 GB of an 80 GB GPU: vllm-project/vllm pull
request 11743) and its captured graphs (1.5 GB: issue 47654)."""

SLACK_SHARE = 0.03
"""Of a GPU's memory that stays free, 2.4 GB of 80: predicted bytes are off by 2 % where a law was fitted to them
(profiles/library: memory_error), and by more elsewhere."""

PLANNED_SHARE = 1.0 - ASLEEP_SHARE - SLACK_SHARE
"""Of a GPU's memory that may be planned with."""
