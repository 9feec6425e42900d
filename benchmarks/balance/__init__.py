"""Rounds balanced by history against rounds by count: on two real engines, and on 64 simulated GPUs beside an oracle.

    python -m benchmarks.balance [--trace FILE.csv[.gz] ...] [--epochs 4] [--json]

On real engines (live_rounds.py): the demo's policy, two vLLM engines on a core each that decode 16 samples at a time,
synchronous rounds of 96 x 8 samples. Two plans that differ in `rollout.balance` alone take their steps in turns, on the
same draws (`seed_per_sample`), and train; the data has two rounds of prompts, so each prompt comes again every second
step. Figures are of the rounds after the first epoch, in which nothing is known of a prompt (`first_epoch`).

- `tail_ratio`: seconds of the tail with balance over those by count, the worse of two readings of it: `drain_ratio`, of
  the seconds in which fewer than a quarter of the 32 samples that run at once are left; and `last_quarter_ratio`, what
  remains with balance of the last quarter of the seconds of the round by count (negative: it ends before that).
- `round_ratio`: seconds of the whole rollout, likewise.
- `prediction_error`: of the mean seconds of a balanced rollout, as a replay of its own lengths predicts them, by costs
  that are refitted from the run by count (as `rlplan tune` does).
- `known`: share of its prompts with a history;
  `same_samples`: share of the trained samples that have the same length and reward in both runs; `off_policy`: samples
  of other weights, of both.

On simulated GPUs (published_rounds.py), for each source of each `--trace` of published lengths (columns `source, step,
prompt_id, sample_id, response_tokens, reward`): 64 engines of Qwen2.5-14B, each on an H100, synchronous rounds of
512 x 8 samples of the last checkpoint, histories of one group of each prompt at the checkpoint before, where there is
one, else at the same.

- `of_oracle`: seconds of a balanced rollout over those of an oracle, which is the same machine, but knows the length of
  each sample; the worst source. `sources` has it for each, with `of_oracle_by_count` and `of_oracle_in_first_epoch`
  (balanced without history: the first sample of each prompt is its probe).

    {"tail_ratio": …, "of_oracle": …, "drain_ratio": …, "last_quarter_ratio": …, "round_ratio": …, …, "sources": […]}

Without `--trace`, `of_oracle` is null; with `--only simulated`, what is of real engines is left out.
"""
