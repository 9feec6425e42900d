"""The export to llm-d: labels, claims and pods fit together, and what llm-d does otherwise is said."""

from __future__ import annotations

import pytest
import yaml

from rlplan.benchmarks.first_hour.sample_folder import LAB
from rlplan.plans.export.llm_d_export import all_locks, export_text, llm_d_export, nodes_needed
from rlplan.plans.export.llm_d_labels import is_label_value, label_faults
from rlplan.plans.export.llm_d_notes import llm_d_notes
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.output_files import written_kind
from rlplan.plans.yaml.yaml_io import loads

from ...group_documents import group, groups_plan, member, pinned

CLUSTER = loads(LAB, Cluster)


def plan(rules=None, **changes):
    """Two jobs that share a rollout node and a training node, and one on its own; `changes`: of job a's fields."""
    shared = group({"a": member() | changes, "b": member()})
    return groups_plan({"g1": shared, "g2": group(["c"])}, rules=rules or {"policy": "first_come", "tail_keep": 0.0})


def export(names=None):
    made = plan()
    return llm_d_export(made, all_locks(made), CLUSTER, names or {})


def test_a_nodes_labels_are_what_the_selectors_of_its_pods_ask_for():
    result = export({"roll": ("r-1", "r-2"), "train": ("t-1", "t-2")})
    labels = {}
    for node in result["nodes"]:
        words = node["label"].split()
        assert words[:5] == ["kubectl", "label", "nodes", node["name"], "--overwrite"]
        labels[node["node"]] = dict(word.split("=") for word in words[5:])
        assert node["taint"] == f"kubectl taint nodes {node['name']} --overwrite timeslice.io/shared=true:NoSchedule"
        assert labels[node["node"]]["timeslice.io/enabled"] == "true"
    assert [node["name"] for node in result["nodes"]] == ["r-1", "t-1", "r-2", "t-2"]
    claims = {claim["metadata"]["name"] for claim in result["claims"]["items"]}
    for name, pods in result["pods"].items():
        for phase in ("rollout", "train"):
            for pod in pods[phase]:
                assert pod["metadata"]["labels"]["timeslice.io/job-id"] == name
                lock = pod["metadata"]["labels"]["timeslice.io/group"]
                selector = pod["spec"]["nodeSelector"]
                assert selector[f"group.timeslice.io/{lock}"] == "true"
                assert selector.items() <= labels[selector["rlplan-node"]].items()
                assert pod["spec"]["resourceClaims"][0]["resourceClaimName"] in claims


def test_jobs_of_a_group_share_locks_and_claims_and_jobs_of_two_groups_share_neither():
    pods = export()["pods"]
    assert pods["a"]["rollout"][0]["spec"] == pods["b"]["rollout"][0]["spec"]
    assert pods["a"]["rollout"][0]["spec"] != pods["c"]["rollout"][0]["spec"]
    assert pods["a"]["env"] == {
        "TIMESLICE_JOB_ID": "a",
        "TIMESLICE_TRAINER_GROUP": "g1-train",
        "TIMESLICE_SAMPLER_GROUP": "g1-rollout",
    }


def test_a_claim_takes_all_accelerators_of_its_node():
    items = export()["claims"]["items"]
    counts = [claim["spec"]["devices"]["requests"][0]["exactly"]["count"] for claim in items]
    assert counts == [CLUSTER.pools["roll"].accelerators.per_node] * 4


def test_without_names_the_commands_have_placeholders_that_are_told_apart_and_counted():
    made = plan()
    assert nodes_needed(made, all_locks(made)) == {"roll": 2, "train": 2}
    text = export_text(export(), "groups.yaml", "llm-d.yaml")
    for placeholder in ("<roll-node-1>", "<roll-node-2>", "<train-node-1>", "<train-node-2>"):
        assert text.count(placeholder) == 2  # to label and to taint
    assert "fill in" in text and "fill in" not in export_text(
        export({"roll": ("a", "b"), "train": ("c", "d")}), "groups.yaml", "llm-d.yaml"
    )


def test_the_text_is_yaml_with_the_same_values_and_is_known_as_an_export(tmp_path):
    path = tmp_path / "llm-d.yaml"
    path.write_text(export_text(export(), "groups.yaml", "llm-d.yaml"))
    assert yaml.safe_load(path.read_text()) == export()
    assert written_kind(path) == "export"


def test_a_group_that_llm_d_carries_out_as_planned_has_no_notes():
    made = plan()
    assert list(llm_d_notes(made, all_locks(made))) == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (plan({"policy": "multi_rate"}), "permit rule is multi_rate"),
        (plan(rollout=pinned("roll", 0) | {"resume_s": 2.0}), "may pause a"),
        (plan(rollout=pinned("roll", 0, 700.0)), "g1-rollout: b may wait 700 s"),
    ],
)
def test_what_llm_d_does_otherwise_is_said(made, words):
    notes = list(llm_d_notes(made, all_locks(made)))
    assert len(notes) == 1 and words in notes[0]


def test_jobs_that_the_plan_runs_at_once_and_tails_that_move_are_said():
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
    made = groups_plan({"g1": group(["a" * 64, "b", "c."])})
    faults = dict(label_faults(made))
    assert set(faults) == {("groups", "g1", "jobs", "a" * 64), ("groups", "g1", "jobs", "c.")}
    assert all("cannot be a Kubernetes label" in message for message in faults.values())
