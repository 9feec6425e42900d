"""One command for a machine with at least one GPU and no network: whether rlplan plans and trains there as it says.

    python -m benchmarks.gpu_check --json [--minutes 8] [--shapes 0.5b,1.5b,7b] [--device cuda|cpu]
        [--slots host|ipc|nccl] [--no-groups] [--out FOLDER]

First weights go from trainer ranks to engine ranks as plain processes, one on each GPU, without vLLM: through host
memory, by CUDA IPC, and by NCCL where there are two GPUs (benchmarks/weight_parties/on_devices.py).

For each shape, smallest first and as long as the minutes last: random weights of that shape of Qwen2.5, a job and a
cluster.yaml of the GPUs that are there; then `rlplan profile`, `rlplan solve` for sync, exact and race, `rlplan
execute` of the three plans for some steps, and `rlplan report`. A part that fails is reported with the end of its
output, and the others go on as far as they can; what could not be tried is listed with the reason. `--device cpu
--shapes tiny` shows the flow without a GPU.

At the end, if minutes are left, two jobs of a tiny model run as one group, whose engines and trainers have a GPU each,
or share one (group_check.py).

`--slots` has weights go through these slots alone, in the first step and in all runs; a run that took others is
`broken`. Without it the executor takes the best that the devices allow.

    {"machine": {…}, "weights": {"host": {"seconds", "gb_per_s", "mismatches", "ranks", "readers"}, "ipc": {…},
     "nccl": {…} or {"untried": WHY} or {"error": WHAT}},
     "shapes": {"0.5b": {"parts": {"profile": {"ok": true, "seconds": …}, …}, "runs": {"sync":
     {"step_s", "step_s_predicted", "prediction_error", "phases_s", "logprob_mean_abs_diff", …}, …}, "turns":
     {"engine_sleeps": {"times", "seconds", "planned_bytes", "freed_bytes"}, …}, "profile": PATH}, …},
     "groups": {"parts": …, "jobs": {"one": {"steps", "turns", "waited_s", "switch_in_s": {"rollout", "train"},
     "switch_out_s", "step_s", "weights"}, …}},
     "untried": {WHAT: WHY, …}, "failed": ["0.5b profile", …], "ok": …}

`runs`: of each plan what `rlplan report` says beside its prediction, the way on which weights went and the slots in
which they lay, their bytes and the seconds of a sync. `turns`: of each kind of turn on the devices how often, the
median of its seconds, the bytes that the ledger planned, and the bytes by which the free memory of the GPUs really
changed (`torch.cuda.mem_get_info`, of all processes). `profile`: the measured profile, named as those of
profiles/library/ are, with its length trace beside it. `stand_in`: where `rlplan profile` failed, a shipped profile
scaled to the shape, with which the rest goes on; its prediction errors say nothing.
Exit code 1 if a part failed.

`python -m benchmarks.gpu_check.wheels` brings together the packages that such a machine lacks.
"""
