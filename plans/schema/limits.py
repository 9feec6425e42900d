"""The largest numbers that a document may hold, and the largest files that are read.

Each limit is well above what anybody trains with, and low enough that planning with it ends. A larger number is most
often a slip (bytes for tokens, the count of all steps for the count of one); without a limit the planner would take all
memory, or all day, before the user sees an error.
"""

from __future__ import annotations

MOST_PROMPTS_PER_STEP = 131_072
"""Prompts of a step; the largest published steps have some 16,000 prompts."""

MOST_SAMPLES_PER_STEP = 2_000_000
"""Samples of a step, prompts_per_step times samples_per_prompt."""

MOST_ISSUED = 8_000_000
"""Samples that one round of a plan may issue, copies included: four times those of the largest step."""

MOST_TOKENS = 10_000_000
"""Tokens of a prompt, of a response or of a row of a length trace; the longest context of any model."""

MOST_NUMBER = 10**9
"""Largest number of an epoch or of a sample in a length trace: they are counts, not digests or times."""

MOST_CHOICES = 64
"""Values of one list that `solve` tries one by one."""

MOST_ACCELERATORS = 131_072
"""Accelerators of a pool that one job is planned for."""

MOST_STEPS = 100_000
"""Steps of a simulated run."""

MOST_SIMULATED = 50_000_000
"""Samples of a simulated run, over all its steps: about an hour."""

DOCUMENT_BYTES = 8 * 2**20
"""Bytes of a YAML document or of a model's config.json: a plan has some 10 kB, one of groups 1.5 kB a job."""

DATA_BYTES = 4 * 2**30
"""Bytes of a file of rows: prompts, a length trace, the trace of a run."""
