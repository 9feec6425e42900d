"""Other values in a document: all comments are kept, and a second pass changes nothing."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.canonical_form import with_values
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ...documents import CLUSTER
from ..conftest import JOB, PLAN_TEXT

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
                   per_node: 8, memory_bytes: 80000000000}   # bytes
    host_memory_bytes: 2_000_000_000_000
    # slots: 2
# the end
"""
CANONICAL = """\
# yaml-language-server: $schema=.rlplan/cluster.schema.json
rlplan_cluster: 1
# what we rent
name: pod  # a name

pools:
  # H100 nodes
  gpu:
    nodes: 8
    # bytes
    accelerators: {kind: cuda, name: "H100#2", per_node: 8, memory_bytes: 80000000000}  # the SXM one
    cores: 96
    host_memory_bytes: 2000000000000
    # slots: 2
    usd_per_node_hour: 24.123456789  # as of May
# the end
"""


def canonical(text, model, path="<text>"):
    return with_values(text, model, {}, path)


def test_an_edited_file_keeps_its_comments_and_every_digit():
    assert canonical(EDITED, Cluster) == canonical(CANONICAL, Cluster) == CANONICAL
    assert loads(CANONICAL, Cluster) == loads(EDITED, Cluster)


def test_keys_that_were_left_out_stay_out_of_what_people_write():
    job = canonical(JOB, Job)
    assert "weight_decay" not in job and loads(job, Job) == loads(JOB, Job)
    shorter = PLAN_TEXT.replace("      hand_over: null\n", "").replace(", recompute: none, offload: false", "")
    assert canonical(shorter, Plan) == PLAN_TEXT == canonical(PLAN_TEXT, Plan) == dump(loads(PLAN_TEXT, Plan))


def test_comments_in_a_plan_stand_where_they_belong():
    cutoff = "      # tried 512: slower\n      cutoff_tokens: 288  # tokens\n"
    edited = PLAN_TEXT.replace("      cutoff_tokens: 288\n", cutoff)
    assert canonical(edited, Plan) == edited


def test_another_place_of_the_schema_is_kept():
    mark = "# yaml-language-server: $schema=../schemas/cluster.schema.json\n"
    assert canonical(mark + CLUSTER, Cluster).startswith(mark)


def test_single_blank_lines_between_sections_are_kept():
    result = canonical(JOB.replace("reward:\n", "\n\n\nreward:\n"), Job)
    assert "\n\nreward:" in result and "\n\n\n" not in result and canonical(result, Job) == result


def test_a_document_that_is_not_valid_is_refused_at_its_line():
    with pytest.raises(InputError, match=r"x\.yaml:2"):
        canonical("rlplan_cluster: 1\nnme: pod\n", Cluster, "x.yaml")


comments = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)


def remarked(remarks):
    """Comments anywhere in a document survive, and its canonical form is a fixed point."""
    rows = JOB.splitlines()
    for position, text, side in remarks:
        comment = f"# # {text}"
        index = position % len(rows)
        if side == "beside" and "#" not in rows[index]:
            rows[index] += "  " + comment
        else:
            indent = len(rows[index]) - len(rows[index].lstrip())
            rows.insert(index, {"above": " " * indent + comment, "indented": "        " + comment}.get(side, ""))
    result = canonical("\n".join(rows) + "\n", Job)
    assert loads(result, Job) == loads(JOB, Job) and canonical(result, Job) == result
    assert all(row[row.index("#") :].rstrip() in result for row in rows if "#" in row)


places = st.sampled_from(["above", "beside", "blank", "indented"])
ANY = given(st.lists(st.tuples(st.integers(0, 10**6), comments, places), max_size=12))


def test_comments_anywhere_survive():
    settings(deadline=None, max_examples=25)(ANY(remarked))()


@pytest.mark.search
def test_many_comments_anywhere_survive():
    settings(deadline=None, max_examples=300)(ANY(remarked))()


@settings(deadline=None, max_examples=10)
@given(st.permutations(re.findall(r"^\S.*\n(?: .*\n)*", JOB, re.MULTILINE)))
def test_the_order_of_keys_does_not_matter(blocks):
    assert canonical("".join(blocks), Job) == canonical(JOB, Job)
