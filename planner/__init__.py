"""From a profile and a length trace to a plan, and back from a run. A room of this package answers one question:

lengths/    how long will responses be
costs/      what does each phase take, in seconds and in memory
simulate/   what would a round, a cycle, a run take
choose/     which candidates, which program, which choice
explain/    what does the plan say of itself: predictions, errors, reasons
tune/       what did the run teach
check/      which findings need a profile, or a workload's jobs
groups/     the same questions for many jobs that share nodes

solve.py is the way from documents to a plan; refresh.py predicts an edited plan anew, compare.py solves one job over
several clusters and values, what_if.py changes documents by dotted path; choose/highs.py is how integer programs
are solved.

Nothing here imports torch, vllm, ray or transformers: plans are solved on laptops and in CI.
"""
