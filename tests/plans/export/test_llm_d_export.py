"""The export to llm-d: labels, claims and pods fit together; what llm-d does otherwise is said; nodes have names."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.benchmarks.first_hour.sample_folder import LAB
from rlplan.plans.export.llm_d_export import all_locks, export_text, llm_d_export, nodes_needed
from rlplan.plans.export.llm_d_labels import is_label_value, label_faults
from rlplan.plans.export.llm_d_notes import llm_d_notes
from rlplan.plans.export.node_locks import PHASES, lock_of, node_locks, nodes_held, pinned_phases
from rlplan.plans.export.node_names import load_node_names
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.output_files import written_kind
from rlplan.plans.yaml.yaml_io import loads

from ...golden import same_as_golden
from ...group_documents import group, groups_plan, member, pinned

CLUSTER = loads(LAB, Cluster)
NAMED = {"roll": ("r-1", "r-2"), "train": ("t-1", "t-2")}


def plan(rules=None, **changes):
    """Two jobs that share a rollout node and a training node, and one on its own; `changes`: of job a's fields."""
    shared = group({"a": member() | changes, "b": member()})
    return groups_plan({"g1": shared, "g2": group(["c"])}, rules=rules or {"policy": "first_come", "tail_keep": 0.0})


def export(names=None):
    made = plan()
    return llm_d_export(made, all_locks(made), CLUSTER, names or {})


def test_the_text_of_an_export_is_yaml_with_the_same_values(tmp_path):
    path = tmp_path / "llm-d.yaml"
    path.write_text(export_text(export(NAMED), "groups.yaml", "llm-d.yaml"))
    same_as_golden(path.read_text().splitlines(), Path(__file__).parent / "golden" / "llm-d.txt")
    assert yaml.safe_load(path.read_text()) == export(NAMED) and written_kind(path) == "export"


def test_a_nodes_labels_are_what_the_selectors_of_its_pods_ask_for():
    result = export(NAMED)
    labels = {node["node"]: dict(word.split("=") for word in node["label"].split()[5:]) for node in result["nodes"]}
    assert [node["name"] for node in result["nodes"]] == ["r-1", "t-1", "r-2", "t-2"]
    claims = {claim["metadata"]["name"] for claim in result["claims"]["items"]}
    for name, pods in result["pods"].items():
        for pod in (*pods["rollout"], *pods["train"]):
            assert pod["metadata"]["labels"]["timeslice.io/job-id"] == name
            selector = pod["spec"]["nodeSelector"]
            assert selector.items() <= labels[selector["rlplan-node"]].items()
            assert pod["spec"]["resourceClaims"][0]["resourceClaimName"] in claims
    pods = result["pods"]
    assert pods["a"]["rollout"][0]["spec"] == pods["b"]["rollout"][0]["spec"] != pods["c"]["rollout"][0]["spec"]


def test_without_names_the_commands_have_placeholders_that_are_counted():
    made = plan()
    assert nodes_needed(made, all_locks(made)) == {"roll": 2, "train": 2}
    text = export_text(export(), "groups.yaml", "llm-d.yaml")
    for placeholder in ("<roll-node-1>", "<roll-node-2>", "<train-node-1>", "<train-node-2>"):
        assert text.count(placeholder) == 2  # to label and to taint
    assert "fill in" in text and "fill in" not in export_text(export(NAMED), "groups.yaml", "llm-d.yaml")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (plan(), None),
        (plan({"policy": "multi_rate"}), "permit rule is multi_rate"),
        (plan(rollout=pinned("roll", 0) | {"resume_s": 2.0}), "may pause a"),
        (plan(rollout=pinned("roll", 0, 700.0)), "g1-rollout: b may wait 700 s"),
    ],
)
def test_what_llm_d_does_otherwise_is_said(made, words):
    notes = list(llm_d_notes(made, all_locks(made)))
    assert [words in note for note in notes] == [True] * (words is not None)


def test_jobs_that_run_at_once_and_tails_that_move_are_noted():
    fields = group({"a": member(), "b": member(), "c": member()}, roll_nodes=2)
    fields["jobs"]["b"]["rollout"] = pinned("roll", 1)
    fields["jobs"]["c"] |= {"rollout": pinned("roll", 0) | {"units": [0, 1]}, "tail_from": 0.7, "tail_units": 1}
    made = groups_plan({"g1": fields}, rules={"policy": "first_come"})
    notes = list(llm_d_notes(made, all_locks(made)))
    assert [note for note in notes if "moves no tail" in note and note.endswith("of c")]
    assert [note for note in notes if note.startswith("several nodes in g1-rollout:")]
    assert [note for note in notes if "lets a and b run at once on parts of its 2 nodes" in note]
    assert len(notes) == 3


@pytest.mark.parametrize(
    ("text", "good"),
    [("a", True), ("a" * 63, True), ("a" * 64, False), ("a-", False), ("a.b_c-d", True), ("", False), ("ä", False)],
)
def test_a_label_is_what_kubernetes_takes(text, good):
    assert is_label_value(text) is good


def test_jobs_whose_names_are_no_labels_are_named_with_their_places():
    faults = dict(label_faults(groups_plan({"g1": group(["a" * 64, "b", "c."])})))
    assert set(faults) == {("groups", "g1", "jobs", "a" * 64), ("groups", "g1", "jobs", "c.")}
    assert all("cannot be a Kubernetes label" in message for message in faults.values())


def planned(jobs, pools, slots=1):
    """A group on nodes of pools r and t; by job, the units of its rollout and of its training."""
    names = {"r": "roll", "t": "train"}
    of_unit = [names[pool] for pool in pools for _ in range(slots)]
    fields = group(list(jobs))
    node = fields["nodes"][0] | {"slots": slots}
    fields["nodes"] = [node | {"pool": names[pool]} for pool in pools]
    for name, units in jobs.items():
        for phase, own in zip(PHASES, units, strict=True):
            held = {"units": own, "pool": of_unit[own[0]]}
            fields["jobs"][name] = fields["jobs"][name] | {phase: fields["jobs"][name][phase] | held}
    fields["timeline"]["spans"][0]["units"] = next(iter(jobs.values()))[0]
    return groups_plan({"g1": fields}).groups["g1"]


@pytest.mark.parametrize(
    ("jobs", "pools", "slots", "locks"),
    [
        ({"a": ([0], [1]), "b": ([0], [1])}, "rt", 1, ["rollout 0 ab-", "train 1 -ab"]),
        ({"a": ([0], [2]), "b": ([1], [2]), "c": ([0, 1], [2])}, "rrt", 1, ["rollout 01 abc-", "train 2 -abc"]),
        ({"a": ([0], [2]), "b": ([1], [2])}, "rrt", 1, ["rollout-1 0 a-", "rollout-2 1 b-", "train 2 -ab"]),
        ({"a": ([0], [1]), "b": ([1], [1])}, "rt", 1, ["rollout 0 a-", "both 1 b-ab"]),
        ({"a": ([0], [2, 3]), "b": ([1], [2, 3])}, "rt", 2, ["rollout 0 ab-", "train 1 -ab"]),
    ],
)  # fmt: skip
def test_nodes_that_a_phase_holds_together_are_one_lock(jobs, pools, slots, locks):
    made = planned(jobs, pools, slots)
    found = node_locks("g1", made)
    parts = [(lock.name.removeprefix("g1-"), lock.nodes, lock.rollouts, lock.trains) for lock in found]
    assert [f"{name} {''.join(map(str, nodes))} {''.join(r)}-{''.join(t)}" for name, nodes, r, t in parts] == locks
    if locks[-1].startswith("both"):
        assert lock_of(found, "b", "rollout") is lock_of(found, "b", "train") is found[1] and found[1].jobs == (
            "a",
            "b",
        )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 4), min_size=1), st.sets(st.integers(5, 7), min_size=1)), min_size=1))
def test_every_phase_has_one_lock_with_all_its_nodes(phases):
    jobs = {f"j{i}": (sorted(rollout), sorted(train)) for i, (rollout, train) in enumerate(phases)}
    made = planned(jobs, "rrrrrttt")
    locks = node_locks("g1", made)
    covered = [node for lock in locks for node in lock.nodes]
    assert len(covered) == len(set(covered)) and len({lock.name for lock in locks}) == len(locks)
    for name, phase, where in pinned_phases(made):
        assert set(nodes_held(made, where)) <= set(lock_of(locks, name, phase).nodes)
        assert sum(name in lock.jobs_of(phase) for lock in locks) == 1
    assert {name for lock in locks for phase in PHASES for name in lock.jobs_of(phase)} == set(jobs)


NEEDED = {"roll": 2, "train": 1}


def test_names_of_nodes_come_by_pool_and_may_be_more_than_needed(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("roll: [gpu-1, gpu-2.zone-b.example, spare]\n")
    assert load_node_names(path, NEEDED) == {"roll": ("gpu-1", "gpu-2.zone-b.example", "spare")}
    path.write_text(f"train: [{'b' * 253}]\n")
    assert load_node_names(path, NEEDED) == {"train": ("b" * 253,)}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- gpu-1\n", 1, ["a mapping of pools"]),
        ("roll: [a, b]\nlab: [c]\n", 2, ["the plan uses no pool 'lab'; its pools are roll, train"]),
        ("roll: [a]\n", 1, ["has 1 name, and the plan takes 2 nodes"]),
        ("roll: gpu-1\n", 1, ["must be a list"]),
        ("roll: null\n", 1, ["must be a list"]),
        ("roll:\n  - a\n  - GPU_2\n", 3, ["'GPU_2' cannot be the name"]),
        ("roll:\n  - a\n  - 'b; rm x'\n", 3, ["cannot be the name"]),
        ("roll:\n  - a\n  - 7\n", 3, ["'7' cannot be the name"]),
        (f"roll: [a, {'b' * 254}]\n", 1, ["cannot be the name"]),
        ("roll: [a, b]\ntrain: [a]\n", 2, ["'a' is already in pool 'roll'"]),
        ("roll: [A, a, a]\nlab: [c]\n", 1, ["'A' cannot", "'a' is already", "no pool 'lab'"]),
    ],
)
def test_a_mistake_in_the_names_is_told_at_its_line(text, line, words, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"nodes\.yaml") as refused:
        load_node_names(path, NEEDED)
    told = refused.value.lines()
    assert refused.value.line == line and len(told) == len(words)
    assert all(word in each for word, each in zip(words, told, strict=True))
