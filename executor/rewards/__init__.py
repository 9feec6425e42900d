"""Rewards: one score per sample, computed in Ray workers while other samples still decode.

`pool` is the driver's side, `process` its view of one worker, `worker` the actor itself. `functions` turns a job's
reward into a callable; `math`, `code` and `keyhunt` hold such, and `scoring` calls it. Neither is called in the worker
itself: `sandbox_child` is the program that a response's code runs under, `scoring_child` the one that calls `math` and
`function` rewards, started by `scoring_process`. `charges` says whose fault a failure is.

Who is to blame decides what a failure costs. What the policy's response can cause (a wrong answer, a crash, a timeout,
memory without end) is reward 0, never a dropped sample: dropping it would teach the policy to fail. Only what the
response cannot cause (infrastructure) is dropped with its reason, and the sample drawn again.

Each sample has a deadline of its own, which rounds/timeouts decides: of a prompt that was answered right, what such
answers took and some more, if the plan has an `adaptive_timeout`. A right answer beyond it is judged wrong, like any
that is too slow; the run counts at most how many (`reward_timeouts` in `rlplan report`).
"""
