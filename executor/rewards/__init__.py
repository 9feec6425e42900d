"""Rewards: one score per sample, computed in Ray workers while other samples still decode.

`pool` is the driver's side, `process` its view of one worker, `worker` the actor;
`judge_pool` has samples judged by a model.
`functions` turns a job's reward into a callable (`kinds/`, `keyhunt`), and `scoring` calls it in a process of its own,
`scoring_child`, which a worker starts; `sandbox` runs a response's code and the row's tests. `charges` says whose fault
a failure is. Without Ray `local_scoring` scores on this machine, and `audit` asks so whether a reward pays what is
right.

Who is to blame decides what a failure costs. What the policy's response can cause (a wrong answer, a crash, a timeout,
memory without end) is reward 0, never a dropped sample: dropping it would teach the policy to fail. Only what the
response cannot cause (infrastructure) is dropped with its reason, and the sample drawn again.

Each sample has a deadline of its own, which rounds/timeouts decides: of a prompt that was answered right, what such
answers took and some more, if the plan has an `adaptive_timeout`. A right answer beyond it is judged wrong, like any
that is too slow; the run counts at most how many (`reward_timeouts` in `rlplan report`).
"""
