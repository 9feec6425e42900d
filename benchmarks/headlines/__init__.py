"""Whether what `solve`, `diff` and `tune` say first is true.

    python -m benchmarks.headlines [--only solved|pairs] [--json]

`solved.py`: 40 jobs that are solved as `rlplan solve` solves them.

- `jobs`: how many were solved; their kinds are drawn with a seed: 1 to 16 nodes, five models, six GPUs, all tables of
  lengths that ship, math and code rewards.
- `below_plain`: jobs whose plan is slower than plain synchronous rounds, as it is predicted or as longer rounds on
  other draws have it, which neither the choice nor the prediction has seen.
- `layout_gives_up`: the largest share by which a plan is slower, in these rounds, than the fastest plain rounds in any
  layout: what the tie between layouts gives up, of which costs do not tell which is faster.
- `sync_best`, `sync_where_best`: jobs in which the fastest plain rounds of the search are at least as fast, in these
  longer rounds, as the fastest other schedule that may be planned; and in how many of them mode sync is planned.
- `others_best`, `others_where_best`: jobs in which that other schedule is faster by `CLEAR`, and in how many of them a
  mode that gains is planned.

`pairs.py`: pairs of plans whose difference is known; its docstring has its keys.

    {"jobs": 40, "below_plain": …, "layout_gives_up": …, "sync_best": …, "sync_where_best": …, "others_best": …,
     "others_where_best": …, "pairs": …, …}
"""
