"""The catalogue of rules: the name of each rule and what it finds. Names are stable: scripts and reviews use them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `rlplan check`.

    Attributes:
        name: lower case with hyphens.
        family: schema, inputs, physics, predictions, groups or policy.
        finds: one line, what it finds.
    """

    name: str
    family: str
    finds: str

    @property
    def bad_input(self) -> bool:
        """Whether the rule finds files that are not valid documents: exit code 2, and no other rule checks them."""
        return self.family == "schema"

    @property
    def warning(self) -> bool:
        """Whether the rule only warns: the plan can be run as it is, and the exit code stays 0."""
        return self.name in _WARNINGS


_TABLE = {
    "schema": """
unreadable               a file that is missing, a folder, not text, or empty
not-yaml                 text that is not YAML, or has repeated keys, anchors (even unused) or tags
wrong-document           a file without the mark of one of rlplan's documents
unknown-key              a key that is not declared, misspelt, or in a wrong unit
missing-key              a required key that is missing
wrong-type               a value of a wrong type: text for a number, a list for a mapping
out-of-range             a number below its minimum or above its maximum
wrong-choice             a word that is not one of the allowed words
wrong-form               text in a wrong form: a name, a digest, a version
wrong-length             a list with too few or too many items
contradiction            two keys of one document that exclude each other
mode-contradiction       rounds that do not fit the bias mode
hand-over-contradiction  a hand-over that leaves no engine to go on decoding
tail-contradiction       engines of a tail that are no larger than the round's, or have too few devices
job-in-two-groups        a job that is in two groups
units-of-wrong-pool      a phase on units that are not in its pool
residency                more sleeping state on a node of a group than its host memory holds
unknown-member           a timeline or a move of a job that is not in the group or the plan
""",
    "inputs": """
input-missing            a missing file that a plan or another document names (except inputs.previous)
input-changed            an input file that has changed since the plan was solved
input-unreadable         an input file that is no longer a valid document of its kind
decisions-edited         decisions that were edited after solving; the predictions are of the solved decisions
predictions-edited       predicted figures that were edited after solving (by digest), or that have no digest
other-version            a plan solved by another version of rlplan
rewards-assumed          reward seconds that were not measured, and differ much from those of such rewards
provenance-differs       a plan that calls its profile measured when it is not, or the other way round
profile-of-other-job     a measured profile of a job with another name
profile-of-other-machine a profile of other machines than the pool's
profile-of-other-model   a profile of a model of another size or kind than the job's, or measured on another model
profile-scaled           a derived profile of another shape than the job's model, scaled to it, or where none can tell
profile-of-earlier-job   a profile measured before the job's model, data, reward or rollout section changed
solved-at-unlikely       a plan whose time of solving is not a time, or is in the future
profile-old              a profile measured longer ago than is allowed
profile-undated          a profile without a date of measurement, or an unreadable or future one, where age is limited
slow-update              a profile none of whose measured updates reaches an MFU of 15%
slow-decode              a profile none of whose measured decode steps reads at 25% of the bandwidth
reward-fails-audit       a reward that, by the profile's audit, does not pay right answers, or pays wrong ones
impossible-order         a profile in which more work took less time, or less than the hardware can take, or TP slows
""",
    "physics": """
wrong-job                a plan whose job has another name than job.yaml
too-few-prompts          data with fewer prompts than a step trains, or than a plan's rounds issue at once
prompts-miscounted       a data.prompts that differs from the number of prompts in the job's data file
wrong-step-size          prompts per step or samples per prompt that differ from the job's
cutoff-beyond-cap        a cutoff at or above the longest response
loss-divisor             loss divisors (samples or tokens) that no synchronous step of the job has
reference-differs        a reference of no KL of the job, none for its KL, or one elsewhere than it wants
divided-by-step          a plan of another mode than sync for a loss that divides by what a step itself has
forgetful-moments        betas of the job by which a token of a long round moves weights less than one of a short round
model-guessed            a model whose shape is guessed from its name, or not known
heads-not-divided        a tensor- or sequence-parallel size that does not divide the model's heads
unknown-pool             a pool that the cluster does not have
same-pool                trainers with a pool of their own that is the engines'
pools-of-two-kinds       engines and trainers on pools of different kinds
engine-wider-than-node   an engine of more accelerators than a node has
too-many-engines         more engines than the pool holds
too-many-trainers        more trainers than the pool holds
judge-without-room       a judge model on accelerators that are not free
micro-batch-too-small    a micro-batch that is shorter than the longest sequence
train-layout             an update whose tp, pp, cp, sp or ep does not divide the model
rewards-differ           a plan that scores other parts than the job's reward has, by workers or by a judge
too-many-reward-workers  more reward workers than host cores
deadline-too-short       a reward deadline below the median seconds of such rewards; most scores would time out
pools-differ             short and long rounds on different pools; they must share one pool
not-in-search            a tensor-parallel size of engines, or a cutoff, that the job's search does not allow
over-issue-beyond-search more samples, or copies, at once than the job's search.max_over_issue allows
layout-unmeasured        an engine layout without costs in the profile
update-unmeasured        an update layout without costs in the profile
batch-unmeasured         more sequences at once than the profile measured
drafts-unpriced          drafts that neither profile nor job prices
function-unfit           a reward function that cannot be called as a reward, by its text
judge-unfit              a judge whose model cannot read a whole question, or cannot write its verdicts
judge-unpriced           a judge model without costs in the profile
kv-below-longest         an engine whose KV cache does not hold the longest sequence
engine-memory            weights, KV cache and graphs of an engine beyond the memory of its accelerator
kv-preempts              a KV cache too small for the sequences of a round, so that some are preempted
train-memory             a trainer's peak, or its states beside engines, beyond the memory of its accelerator
host-memory              engines, offloaded trainer states and weights in transfer beyond the host memory of a node
capacity-contradicts-inputs a memory capacity that differs from the profile's layout, or from the pool
pool-too-large           a pool with more accelerators than rlplan simulates
accelerator-unlike-name  accelerators whose kind or memory contradicts their name, or GPUs with the misspelt name of one
not-executable           a decision that rlplan execute cannot run (only with check --executor)
slo-missed               a predicted p95 of the step above the job's limit
does-not-fit-pool        a phase of a workload whose nodes, slots or tp its pool does not have
""",
    "predictions": """
price-does-not-add-up    a price that is not the number of nodes times the cluster's price
nodes-do-not-add-up      a number of nodes that engines and trainers do not need
bias-over-budget         a predicted length ratio outside the plan's own bias budget
gap-contradicts-bound    a gap that contradicts value and bound
lengths-beyond-cap       a predicted length beyond the job's longest response
decodes-too-slowly       a decode step so long that execute takes an engine for one that hangs
thin-trace               a length trace with too few responses, or without the lengths that decide the plan
""",
    "groups": """
too-many-nodes           more nodes than a pool has, over all groups
node-unlike-pool         a node whose slots or host memory differ from those of its pool
state-beyond-memory      sleeping states of the current workload beyond a node's host memory
group-too-large          more jobs in a group than its rules allow
units-held-twice         two jobs on one unit at one time in the timeline
timeline-contradiction   a span that ends before it begins, leaves the timeline, or holds units that are not its job's
bound-broken             a job whose slowdown is above its bound
bound-changed            a bound that differs from the workload's
pace-beyond-bound        a pace that is slower than the bound allows
way-changed              a phase whose pool, width or seconds differ from its way in the workload
job-missing              a job of the workload without a group
job-unknown              a job that is not in the workload
rules-changed            rules that differ from the workload's
state-contradicts-jobs   sleeping states of a node that are not those of the jobs on it
workload-unsolvable      a workload with a source that cannot be read, or a state or a model that fits on no node
workload-too-large       a workload that does not fit its pools, however its jobs share nodes
""",
    "policy": """
policy-usd-per-hour      a price per hour above the policy's
policy-usd-per-samples   a price per 1000 samples above the policy's
policy-bias              a length ratio, or a bias budget, beyond the policy's
policy-cut               more trained samples cut at the job's cap than the policy allows
policy-mode              a mode that the policy forbids
policy-step-p95          a predicted p95 of the step above the policy's
policy-slo-required      a job without a limit on its p95, where the policy requires one
policy-gap               a plan whose proven gap is above the policy's
policy-provenance        a profile of a provenance that the policy does not allow
policy-assumed           lengths or reward seconds that were not measured on the job, where the policy refuses them
policy-memory-headroom   memory with less headroom than the policy requires
policy-error             an expected error above the policy's
policy-slowdown          a job in a group that is slower than the policy allows
policy-bounds-kept       fewer kept bounds than the policy requires
policy-nodes             more nodes of a pool than the policy allows
policy-unknown-pool      a policy whose limits on nodes name no pool of the cluster
policy-sandbox           a code reward whose sandbox is optional, where the policy requires it
policy-job-files         a job whose data or model is missing, where the policy requires them
""",
}

_WARNINGS = {"model-guessed", "thin-trace", "profile-scaled", "slow-update", "slow-decode", "impossible-order",
             "forgetful-moments", "decodes-too-slowly"}  # fmt: skip

RULES: dict[str, Rule] = {
    name: Rule(name, family, finds.strip())
    for family, lines in _TABLE.items()
    for name, _, finds in (line.partition(" ") for line in lines.strip().splitlines())
}
"""Rules by name, in the order of the list."""


def table() -> str:
    """The catalogue as text: a heading for each family, a line for each rule."""
    wide = max(map(len, RULES))
    lines: list[str] = []
    for family in _TABLE:
        lines.append(family + (" (bad input: exit code 2)" if family == "schema" else ""))
        lines += [
            f"  {rule.name:{wide}}  {rule.finds}{' (warning)' * rule.warning}"
            for rule in RULES.values()
            if rule.family == family
        ]
    return "\n".join(lines)
