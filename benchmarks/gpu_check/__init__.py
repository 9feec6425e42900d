"""One command for a machine with a GPU and no network: how far rlplan is from what its GPU can do, in 8 minutes.

    python -m benchmarks.gpu_check --json [--seconds 480] [--part attention|update|decode|execute|profile|groups|steps]…
        [--shape 0.5b]… [--steps 4] [--device cuda|cpu] [--out FOLDER]

Models of random weights in shapes of Qwen2.5. Parts in order of worth, each in processes of its own, and each begun
only while as many seconds are left as it takes at least:

- `attention`, `update` (trainer_part.py): a layer's attention on lengths that were not seen before, over the same on
  lengths that were; MFU of an update of the real trainer for each shape;
- `decode` (decode_part.py): the executor's engine beside `vllm.LLM` alone on the same requests;
- `execute` (plans_part.py): plans of modes sync and exact, run side by side for some steps. Responses have a median of
  300 tokens, those to one prompt in ten one of 2,400 and up to 4,096 (random_policy.py);
- `profile`: `rlplan profile --minutes 1`;
- `groups` (plans_part.py): two jobs of a tiny model run as one;
- `steps` (step_costs.py): what a decode step of vLLM alone costs beside the GPU, by function.

Each figure is a JSON line on standard output and in FOLDER/lines.jsonl as soon as it is known; merged key by key these
lines are the result, which is printed at the end and when the check is told to end (SIGTERM, SIGINT):

    {"machine": {…}, "attention": {"new_over_seen": …}, "update": {"0.5b": {"mfu": …}, …},
     "decode": {"256": {"of_vllm": …, "step_s": …}, …, "s_per_sequence": {"ours": {"32-256": …}, "vllm": {…}}},
     "execute": {"sync": {"steps": 4, "step_s": …}, "exact": {"steps": 4, "speedup": …}, "logprob_mean": …},
     "profile": {…}, "groups": {"one": {"steps", "turns", "waited_s", …}, …}, "parts": {COMMAND: SECONDS},
     "skipped": {PART: WHY}, "failed": {WHAT: ERROR}, "cut": WHEN, "seconds": …, "out": FOLDER}

Exit code 0: nothing failed, though parts may be skipped for lack of time; 1: something failed, or the check was cut;
2: bad input, as `--device cuda` without a GPU. What the commands said is in FOLDER/*.log. With `--device cpu` tiny
shapes go through the same code. Nothing else may use the GPU meanwhile: engines need its memory when they wake.

`python -m benchmarks.gpu_check.pack OUT` packs what such a machine lacks.
"""
