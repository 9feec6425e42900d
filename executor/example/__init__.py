"""The demo that `rlplan init` writes: a small task with a verifiable reward, and a tiny policy that already reasons.

- `task`: *keyhunt*, its words, its prompts and their difficulty. Pure Python.
- `warmup`: the model, and the short supervised warm-up that gives it its way of answering. Needs torch, transformers.
- `write`: puts model, data set, job.yaml and cluster.yaml into a folder.

Importing this package imports none of them.
"""
