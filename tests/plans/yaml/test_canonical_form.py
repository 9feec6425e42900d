"""Canonical form of edited documents: all comments are kept, and a second pass changes nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.yaml.canonical_form import canonical
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ...documents import CLUSTER
from ..conftest import JOB

EDITED = """\
# what we rent
name: "pod"      # a name
rlplan_cluster: 1

pools:
  # H100 nodes
  gpu:
    usd_per_node_hour: 24.123456789   # as of May
    nodes: 8
    cores: 96
    accelerators: {name: "H100#2", kind: cuda,   # the SXM one
                   per_node: 8, memory_bytes: 8e10}   # bytes
    host_memory_bytes: 2_000_000_000_000
    # slots: 2
# the end
"""


def test_an_edited_file_keeps_its_comments_and_every_digit() -> None:
    text = EDITED.replace("8e10", "80000000000")
    result = canonical(text, Cluster)
    assert loads(result, Cluster) == loads(text, Cluster)
    for comment in (
        "# what we rent",
        "# a name",
        "# H100 nodes",
        "# as of May",
        "# the SXM one",
        "# bytes",
        "# slots: 2",
        "# the end",
    ):
        assert result.count(comment) == 1, comment
    assert '"H100#2"' in result and "24.123456789" in result
    assert canonical(result, Cluster) == result


def test_keys_that_were_left_out_stay_out_of_what_people_write_and_are_in_what_we_write(folder: Any) -> None:
    job = canonical(JOB, Job)
    assert "weight_decay" not in job and loads(job, Job) == loads(JOB, Job)
    plan = folder.path("plan.yaml").read_text()
    shorter = plan.replace("      hand_over: null\n", "").replace(", recompute: none, offload: false", "")
    assert canonical(shorter, Plan) == plan


def test_the_plan_that_solve_writes_is_canonical(folder: Any) -> None:
    plan = load_plan(folder.path("plan.yaml"))
    assert canonical(dump(plan), Plan) == dump(plan)


def test_comments_in_a_plan_survive_where_they_belong(folder: Any) -> None:
    text = folder.path("plan.yaml").read_text()
    edited = text.replace(
        "      cutoff_tokens: 288\n", "      # tried 512: slower\n      cutoff_tokens: 288  # tokens\n"
    )
    assert canonical(edited, Plan) == edited


def test_another_place_of_the_schema_is_kept() -> None:
    text = "# yaml-language-server: $schema=../schemas/cluster.schema.json\n" + CLUSTER
    assert canonical(text, Cluster).startswith("# yaml-language-server: $schema=../schemas/cluster.schema.json\n")


def test_single_blank_lines_between_sections_are_kept_in_what_people_write() -> None:
    text = JOB.replace("reward:\n", "\n\n\nreward:\n")
    result = canonical(text, Job)
    assert "\n\nreward:" in result and "\n\n\n" not in result
    assert canonical(result, Job) == result


def test_a_document_that_is_not_valid_is_refused_at_its_line() -> None:
    with pytest.raises(InputError, match=r"x\.yaml:2"):
        canonical("rlplan_cluster: 1\nnme: pod\n", Cluster, "x.yaml")


comments = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20).map(
    lambda t: "# " + t.replace("\x85", "")
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), comments, st.sampled_from(["above", "beside", "blank", "indented"])),
        max_size=12,
    )
)
def test_comments_anywhere_survive_and_canonical_form_is_a_fixed_point(remarks: list[tuple[int, str, str]]) -> None:
    rows = JOB.splitlines()
    for position, text, side in remarks:
        comment = f"# {text}"
        index = position % len(rows)
        if side == "beside" and "#" not in rows[index]:
            rows[index] += "  " + comment
        else:
            indent = len(rows[index]) - len(rows[index].lstrip())
            rows.insert(index, {"above": " " * indent + comment, "indented": "        " + comment}.get(side, ""))
    text = "\n".join(rows) + "\n"
    result = canonical(text, Job)
    assert loads(result, Job) == loads(JOB, Job)
    assert canonical(result, Job) == result
    for row in rows:
        if "#" in row:
            assert row[row.index("#") :].rstrip() in result


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(chance: random.Random) -> None:
    blocks: list[list[str]] = []
    for row in JOB.splitlines():
        if row.startswith(" "):
            blocks[-1].append(row)
        else:
            blocks.append([row])
    chance.shuffle(blocks)
    assert canonical("\n".join(row for block in blocks for row in block) + "\n", Job) == canonical(JOB, Job)


def test_a_job_on_disk_says_the_same_after_it(folder: Any) -> None:
    before = load_job(folder.path("job.yaml"))
    folder.path("job.yaml").write_text(canonical(folder.path("job.yaml").read_text(), Job))
    assert load_job(folder.path("job.yaml")) == before
