"""The production replay of RollMux (arXiv 2512.11306, Fig. 13): the price and the kept bounds of each placer.

    python -m benchmarks.rollmux --replay FILE.json [--seeds 3] [--parts exact,random] [--json]

FILE holds the Solo-D curve of training GPUs (published_jobs.py); jobs, prices and footprints are published tables
(published_jobs.py). All placers get the same jobs, seconds and bounds; the published placers do not use the levers
(spill of rollout to the training pool, other widths, the multi-rate permit rule). Means over seeds:

    {"exact": {FIGURE: {PLACER: ...}}, "random": {...}, "moves": ..., "moves_share_of_gpu_hours": ..., "levers": {...},
     "drift": {...}}   (the last two with --parts levers,drift)

exact: phases take their mean. random: phases are drawn (published_jobs.py), the planner knows other draws of the same
distribution, and plans of all placers leave the same margin. Figures: `usd_per_hour` (with the `fluid_bound`),
`usd_per_iteration` (USD for the training that one USD buys under Solo-D; an iteration counts by what it costs alone),
`usd_per_plain_iteration`, `slo_attained` and `slo_attained_by_hours` (replay.py says how both count), `moves` and
`moves_share_of_gpu_hours` of all jobs, `over_algorithm_1` and `over_fluid_bound` (ratios of `usd_per_hour`).
levers: `ours` without one (exact, first seed). `slow_spill`: a rollout on H800 takes 1.19x its seconds on H20, as if
memory bounded all of it; by default it takes the same seconds, though the paper's own jobs run 1.07-1.11x faster on
H800 alone.
drift (first seed): phases become up to 30 % slower or faster over each job's stay. `static` goes on planning with the
phases at arrival; `replanned` looks every hour and plans anew where a bound is broken.
"""
