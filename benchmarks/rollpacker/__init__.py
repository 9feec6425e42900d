"""The published runs of RollPacker (arXiv 2509.21009) in rlplan's simulator, and rlplan's own plans beside them.

    python -m benchmarks.rollpacker --figures FILE.json [--model 7B|14B|32B] [--cap TOKENS] [--phases FILE.yaml] --json

`--figures`: series read off the paper's figures (lengths, sensitivity, steps, phases), not shipped. `--phases`: what is
published of a model size and cannot be simulated (GPUs, TP, seconds of the phases other than rollout); `14B.yaml` and
its neighbours here are the paper's three, and say which numbers are published and which are deduced.

Calibrated values:
- dependence of lengths in a prompt (rho) and seconds that a round takes besides decoding, on two of the seven published
  points of the 16k sensitivity (figure 11); the other five are predictions;
- the speed of decoding, on the seconds of the plain round: one number for the sensitivity, one for the model size.

The JSON's `ours.same_bias` is the speed-up of rlplan's plan over RollPacker's operating point at no more bias than that
has, `ours.unbiased` that of an unbiased plan over the plain synchronous system; both per trained sample, all simulated.

    published_figures  the published series
    case               published figures of a model size that are not simulated
    sensitivity        figure 11: over-issue of prompts and of samples
    quotas             RollPacker's rounds
    cycle              step seconds of veRL and RollPacker, the ablation
    solve_inputs       cluster, job, profile and trace for `rlplan solve`
    rlplan_plans       plans of `rlplan solve` on the same GPUs
"""
