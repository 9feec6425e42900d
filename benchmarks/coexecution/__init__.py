"""What do jobs gain that run as one on the same two cores, are their bounds kept, and is it as predicted?

    python -m benchmarks.coexecution [--parts runs,moves] [--jobs 2,3] [--steps 8] [--kills 30] [--json]

`runs`: everything is real: the demo's model, vLLM engines, FSDP trainers, a process for each job. Jobs decode on core 0
and train on core 1, each a Ray node of its own. Each job runs alone first, then all as a co-execution group that
`rlplan solve` made from these runs.

- `throughput_ratio`: seconds that the steps which the jobs took together would have taken one job after the other, by
  their means alone on the same two cores, over the seconds in which they were taken together, between the second
  step's end of the last job and the end of the first job that is done; the least of the groups. Neighbours on a shared
  machine slow a core by a third for seconds at a time, so seconds alone are those on cores as fast as they were
  meanwhile (core_speed.py); `by_the_clock` is the ratio without that;
- `slowdowns`: by job, mean seconds between two ends of steps within these, over those alone; `bounds_kept`: whether all
  are within the workload's bounds;
- `prediction_error`: largest relative error of a job's slowdown as predicted against the measured one; predicted by the
  permit simulator from the seconds that each step took alone, and from `interference`, by which jobs slow each other:
  `cores`, by which two cores that both compute do, measured without the executor (interference.py), `besides`, CPU
  seconds that a job's driver and rewards take for each second of its phases, alone on the core that idles then, and
  `background`, CPU seconds in a second that Ray's nodes and the machine take without a job;
- `plan_error`: largest relative error of `planned`: a job's slowdown over the same steps, simulated from the mean
  seconds in the plan, those of the runs alone by the clock. `planned_long_run`: the slowdown that stands in the plan;
- `same_samples`: share of trained samples with the same prompt, length and reward as alone (`seed_per_sample`);
- `kills`: processes of the group of two jobs that were killed while it ran (a job's driver, engines, their cores,
  trainer ranks, the actor that gives permits); `lost`: trained samples of the runs alone that are missing after them.
  If that run does not end well, `lost` is null, `failed` says why, and the exit code is 1.

`moves`: `middle` leaves the group of `short` and `middle` while it runs, and `brief` joins, by `solve --from` and
`apply`; then the other way round (group_runs.py). `apply` is killed in the first change, the driver of the groups in
the second; both count to `kills`, and samples of `short` and `middle` that are missing then to `lost`.

- `moves`: of each that joined, seconds of its start (`outage_s`) beside those predicted (`price_s`), which are those
  that its start took alone; of each that left, the seconds until the end of its step (`drain_s`);
- `move_error`: relative error of the predicted seconds of the start that was not interrupted.

    {"throughput_ratio": …, "slowdowns": {…}, "bounds_kept": true, "prediction_error": …, "kills": 30, "lost": 0, …}
"""
