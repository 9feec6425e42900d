"""Plans and the documents beside them, the contract from planner to executor. Imports nothing of rlplan but rounds.

schema/    the documents as models: cluster, job, plan, workload, groups_plan, policy
yaml/      text to models and back: positions, a line for each fault, canonical text, files to read and to write
check/     rules that documents are held to; plan_check raises what a plan may not start with
diff/      what changes between two plans, by meaning; whether a re-plan needs a person
facts/     what follows from a plan: digests, bars, the critical path, whether the executor can run it
phrases/   numbers, names, sentences and tables for people: the same in terminal, diff, pages and messages
files/     files beside the documents: prompts, a model's folder, the folder of a run
page/      plans and runs as HTML
schemas/, examples/   JSON Schemas for editors, and plans with all that they were solved from
"""
