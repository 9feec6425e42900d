"""A hundred random faults in one run, and whether the run trains the same samples as a run without faults.

    python -m benchmarks.faults [--faults 100] [--steps 45] [--seed 0] [--json] [--keep DIR]

The demo's job runs twice by one plan (two engines, two trainer ranks, mode `exact`): once without and once with
faults. Faults come in bursts, so that some strike while the run still recovers from others:

- SIGKILL and SIGSTOP of engine actors, of their core processes, of trainer ranks and of reward workers; of an engine
  and of the one that is started in its place; SIGSTOP of Ray's head for some seconds;
- errors that GPUs, cuBLAS, NCCL and a full memory raise, raised in the update of a rank and in the loop of an engine's
  core (inside.py);
- SIGKILL of the driver, which is then started again with `--resume`, as a cluster's scheduler would; SIGSTOP of it for
  some seconds, as on a host that freezes; a clock that jumps by two hours; a second driver on the folder;
- a disk that is full for some seconds (RLIMIT_FSIZE on the driver or on the trainer's ranks: their writes really fail)
  or slow, a full object store;
- random bytes to all ports of the run, and as the answer of a process that scores;
- a trace whose last line is torn, and a flipped byte in the newest checkpoint, before a restart.

At the end it compares the two runs: `lost` and `double` count samples that were trained in only one of them or twice,
`off_policy` samples that were decoded by other weights than those that were trained, `unrecovered` the faults after
which the run did not go on. The job has `seed_per_sample`, so that the same responses are trained in the same steps
(`different` groups are not), and the weights are the same but for rounding: `weights_beyond` is the share of those that
differ by more.
"""
