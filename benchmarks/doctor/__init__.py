"""`python -m benchmarks.doctor --json`: public cases of set-ups that ran out of memory, and of others that ran.

`cases.yaml` holds each case's settings as its source has them, in the terms of `TrainerSetup`; what a source leaves
open is the framework's default. `fits`, `phase` and `where` are what the source reports, `remedies` what was said to
mend it, `peak_gib` a measured peak of the trainer's GPU. A case is right if the doctor says the same of it, with the
phase, and each remedy of it fits.
"""
