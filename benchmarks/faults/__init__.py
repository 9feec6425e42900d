"""Forty random faults in one run, and whether the run trains the same samples as a run without faults.

    python -m benchmarks.faults [--faults 40] [--steps 12] [--seed 0] [--json] [--keep DIR]

The demo's job runs twice by one plan (two engines, two trainer ranks, mode `exact`): once without and once with
faults. Faults come in bursts, so that some strike while the run still recovers from others:

- SIGKILL and SIGSTOP of engine actors, of their core processes, of trainer ranks and of reward workers;
- SIGKILL of the driver, which is then started again with `--resume`, as a cluster's scheduler would; SIGSTOP of it for
  some seconds, as on a host that freezes;
- a disk that is full for some seconds (RLIMIT_FSIZE on the driver or on the trainer's ranks: their writes really fail);
- a trace whose last line is torn, and a flipped byte in the newest checkpoint, before a restart.

At the end it compares the two runs: `lost` and `double` count samples that were trained in only one of them or twice,
`off_policy` samples that were decoded by other weights than those that were trained, `unrecovered` the faults after
which the run did not go on. The job has `seed_per_sample`, so that the weights must be the same too, up to rounding.
"""
