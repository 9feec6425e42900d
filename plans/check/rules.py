"""The catalogue of rules: what each is called and what it finds. Names are stable: scripts and reviews use them."""

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
        """Whether such a file is no document: exit code 2, and nothing else of it is looked at."""
        return self.family == "schema"

    @property
    def warning(self) -> bool:
        """Whether such a plan can be run as it is: exit code 0, and a reviewer is told."""
        return self.name in _WARNINGS


_TABLE = {
    "schema": """
unreadable               a file that is missing, a folder, not text, or empty
not-yaml                 text that is not YAML, or has repeated keys, anchors (even unused) or tags
wrong-document           a file that is marked as no document of rlplan's
unknown-key              a key that is not declared, misspelt, or of a wrong unit
missing-key              a key that must be there
wrong-type               a value of another type: text for a number, a list for a mapping
out-of-range             a number below or above what it may be
wrong-choice             a word that is none of those that may stand there
wrong-form               text that does not have its form: a name, a digest, a version
wrong-length             a list with too few or too many items
contradiction            two keys of one document that exclude each other
mode-contradiction       rounds that are not what the bias mode needs
hand-over-contradiction  a hand-over that leaves no engine to go on decoding
job-in-two-groups        a job that stands in two groups
units-of-wrong-pool      a phase on units that are none of its pool's
residency                more sleeping state on a node of a group than its host memory holds
unknown-member           a timeline or a move that speaks of a job that is not there
""",
    "inputs": """
input-missing            a file that a plan or another document names and that is not there; inputs.previous may be gone
input-changed            an input file that is no longer the one that the plan was solved from
input-unreadable         an input file that is no document of its kind any more
decisions-edited         decisions that are not those that were solved; predictions are of others
predictions-edited       predicted figures that differ from those that were solved (by digest), or have no digest
other-version            a plan solved by another version of rlplan
rewards-assumed          reward seconds that nobody measured, and far from what such rewards take
provenance-differs       a plan that calls its profile measured when it is not, or the other way round
profile-of-other-job     a measured profile of a job with another name
profile-of-other-machine a profile of other machines than the pool's
profile-of-other-model   a derived profile of a model of another size than the job's
profile-of-earlier-job   a profile measured before the job's model, data, reward or rollout section changed
solved-at-unlikely       a plan whose time of solving is no time, or is still to come
profile-old              a profile measured longer ago than is allowed
profile-undated          a profile without a date of measurement, or an unreadable or future one, where age is limited
""",
    "physics": """
wrong-job                a plan whose job has another name than job.yaml
too-few-prompts          data with fewer prompts than a step trains, or than a plan's rounds want at a time
prompts-miscounted       a number of prompts that is not that of the job's data file
wrong-step-size          prompts per step or samples per prompt that are not the job's
cutoff-beyond-cap        a cutoff at or above the longest response
loss-divisor             samples or tokens to divide the loss by that no synchronous step of the job has
heads-not-divided        a tensor-parallel size that does not divide the model's heads
unknown-pool             a pool that the cluster does not have
engine-wider-than-node   an engine of more accelerators than a node has
too-many-engines         more engines than the pool holds
too-many-trainers        more trainers than the pool holds
judge-without-room       a judge model on accelerators that are not free
micro-batch-too-small    a micro-batch that does not hold the longest sequence
train-layout             an update whose tp, pp, cp or ep does not divide the model
too-many-reward-workers  more reward workers than host cores
deadline-too-short       a reward deadline below the median seconds of such rewards; most scores would time out
pools-differ             kinds of round on different pools; they take turns on one
not-in-search            engines of a tensor-parallel size that the job's search does not have
over-issue-beyond-search more samples, or copies, at once than the job's search.max_over_issue allows
layout-unmeasured        engines that the profile has no costs of
update-unmeasured        an update that the profile has no costs of
batch-unmeasured         more sequences at once than were ever measured
drafts-unpriced          drafts without a stated acceptance
judge-unpriced           a judge model that the profile has no costs of
kv-below-longest         an engine whose KV cache does not hold the longest sequence
engine-memory            weights, KV cache and graphs of an engine that its accelerator does not hold
kv-preempts              a KV cache that the sequences of a round outgrow, so that some are preempted
train-memory             a trainer's peak, or its states beside engines, that its accelerator does not hold
host-memory              engines, offloaded states of trainers and weights on their way that a node's host does not hold
capacity-contradicts-inputs a memory's capacity that is not that of the profile's layout, or of the pool
pool-too-large           a pool of more accelerators than one job is planned on
accelerator-unlike-name  accelerators of a kind, or with more memory, that none of their name has
slo-missed               a predicted p95 of the step above the job's limit
does-not-fit-pool        a phase of a workload whose nodes, slots or tp its pool does not have
""",
    "predictions": """
price-does-not-add-up    a price that is not nodes times the cluster's price
nodes-do-not-add-up      a number of nodes that is not what engines and trainers take
bias-over-budget         a predicted length ratio outside the plan's own bias budget
gap-contradicts-bound    a gap that is not what value and bound make it
lengths-beyond-cap       a predicted length beyond the job's longest response
thin-trace               a length trace of too few responses, or one that does not show the lengths that decide the plan
""",
    "groups": """
too-many-nodes           more nodes than a pool has, over all groups
node-unlike-pool         a node with other slots or another host memory than its pool's
state-beyond-memory      sleeping states, as the workload has them now, beyond a node's host memory
group-too-large          more jobs in a group than its rules allow
units-held-twice         two jobs on one unit at one time in the timeline
timeline-contradiction   a span that ends before it begins, leaves the timeline, or holds units that are not its job's
bound-broken             a job that does not keep its bound on slowdown
bound-changed            a bound that is no longer the workload's
pace-beyond-bound        a pace that is slower than the bound allows
way-changed              a phase whose pool, width or seconds are no longer those of its way in the workload
job-missing              a job of the workload without a place
job-unknown              a job that the workload does not have
rules-changed            rules that are no longer the workload's
state-contradicts-jobs   sleeping states of a node that are not those of the jobs on it
workload-unsolvable      a workload with a source that cannot be read, or a state or a model that fits nowhere
workload-too-large       a workload that its pools cannot hold whatever shares what
""",
    "policy": """
policy-usd-per-hour      a price per hour above the policy's
policy-usd-per-samples   a price per 1000 samples above the policy's
policy-bias              a length ratio, or a bias budget, beyond the policy's
policy-mode              a mode that the policy forbids
policy-step-p95          a predicted p95 of the step above the policy's
policy-slo-required      a job without a limit on its p95, where the policy requires one
policy-gap               a plan that is proven to a wider gap than the policy allows
policy-provenance        a profile of a provenance that the policy does not allow
policy-assumed           lengths or reward seconds that nobody measured on the job, where the policy refuses them
policy-memory-headroom   memory with less headroom than the policy wants
policy-error             an expected error above the policy's
policy-slowdown          a job in a group that is slower than the policy allows
policy-bounds-kept       fewer bounds kept than the policy wants
policy-nodes             more nodes of a pool than the policy allows
policy-unknown-pool      a policy that limits nodes of pools none of which the cluster has
policy-job-files         a job whose data or model is not there, where the policy wants them
""",
}

_WARNINGS = {"thin-trace"}

RULES: dict[str, Rule] = {
    name: Rule(name, family, finds.strip())
    for family, lines in _TABLE.items()
    for name, _, finds in (line.partition(" ") for line in lines.strip().splitlines())
}
"""By name, in the order in which they are listed."""


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
