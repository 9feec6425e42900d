"""Rewards: one score per sample, computed in Ray workers while other samples still decode.

`pool` is the driver's side, `process` its view of one worker, `worker` the actor itself. `functions` turns a job's
reward into a callable; `math`, `code` and `keyhunt` hold such. `sandbox_child` is the program that a response's code
runs under.

Who is to blame decides what a failure costs. What the policy's response can cause (a wrong answer, a crash, a timeout)
is reward 0, never a dropped sample: dropping it would teach the policy to fail. Only what the response cannot cause
(infrastructure) is retried, and dropped with its reason when the retries are used up.
"""
