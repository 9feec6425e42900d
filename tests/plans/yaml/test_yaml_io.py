"""Canonical text: round trips, byte identity, and agreement with a second YAML reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import rlplan
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.yaml import yaml_doc
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import atomic_write, dump, error_at, loads, sha256_file
from rlplan.plans.yaml.yaml_write import number, write

from ..strategies import clusters, plans, relaxed, texts

# fmt: off
awkward = st.sampled_from([
    "", " ", "null", "~", "yes", "no", "on", "true", "1", "1.5", "1e3", "1e-3", "0x1f", "017", "1_000", "1_",
    "12:30:45", "2026-01-02", ".inf", ".nan", "-", "- a", "a: b", "#c", "a #c", "&a", "*a", "!t", "%d", "@",
    "`", "{", "[", '"', "'",
    "=", "<<", "\u2028", "\ufeff", "\x85", "\x00", "\x7f", "a\nb", "é", "😀", "0" * 64, "1e" + "5" * 62, "+1", ".5",
    "...",
])
# fmt: on
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | finite | texts | awkward
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | awkward, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(texts | awkward, values, min_size=1, max_size=5)


@relaxed
@given(documents)
def test_what_is_written_is_read_back_with_its_types(document: dict[str, Any]) -> None:
    text = write(document)
    again = parse(text, "x").value
    assert again == document
    assert repr(again).replace("-0.0", "0.0") == repr(document).replace("-0.0", "0.0")  # 1 == 1.0 == True


@relaxed
@given(documents)
def test_a_plain_yaml_1_1_reader_reads_the_same(document: dict[str, Any]) -> None:
    assert yaml.safe_load(write(document)) == document


@relaxed
@given(documents)
def test_writing_again_what_was_read_gives_the_same_bytes(document: dict[str, Any]) -> None:
    text = write(document)
    assert write(parse(text, "x").value) == text
    assert text.endswith("\n") and "\r" not in text and "\t" not in text


@relaxed
@given(finite)
def test_a_float_keeps_its_value_and_stays_a_float(value: float) -> None:
    assert parse(f"x: {number(value)}", "x").value["x"] == value
    again = parse(f"x: {number(value, 6)}", "x").value["x"]
    assert isinstance(again, float)
    assert math.isclose(again, value, rel_tol=5.1e-6)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (2.0, "2.0"), (-0.0, "0.0"), (1e-9, "1.0e-09"), (1234567.0, "1234570.0"), (1e22, "1.0e+22"),
        (0.1 + 0.2, "0.3"), (1 / 3, "0.333333"),
    ],
)  # fmt: skip
def test_floats_have_one_spelling(value: float, text: str) -> None:
    assert number(value, 6) == text


@settings(relaxed, max_examples=60)
@given(st.one_of(clusters(), plans()))
def test_a_document_survives_dump_and_load_and_dumps_to_the_same_bytes(document: Cluster | Plan) -> None:
    text = dump(document)
    again = loads(text, type(document))
    assert dump(again) == text
    assert again == document
    assert dump(loads(dump(document, digits=6), type(document))) == dump(document, digits=6)


@settings(relaxed, max_examples=10)
@given(plans())
def test_a_dumped_plan_cut_anywhere_before_its_last_line_is_refused(plan: Plan) -> None:
    text = dump(plan)
    lines = text.splitlines(keepends=True)
    for count in range(1, len(lines)):
        with pytest.raises(InputError):
            loads("".join(lines[:count]), Plan)


def test_one_changed_value_changes_one_line(folder: Any) -> None:
    plan = load_plan(folder.path("plan.yaml"))
    changed = loads(dump(plan).replace("engines: 2, tp: 1", "engines: 1, tp: 1"), Plan)
    before, after = dump(plan).splitlines(), dump(changed).splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_the_order_of_keys_is_the_models_whatever_the_files(folder: Any) -> None:
    head, tail = folder.path("job.yaml").read_text().split("reward:\n")
    rest = "reward:\n" + tail
    assert dump(loads(rest + head, Job)) == dump(loads(head + rest, Job))


def test_the_canonical_plan_looks_as_reviewers_know_it(folder: Any) -> None:
    text = dump(load_plan(folder.path("plan.yaml")), folder.path("again.yaml"))
    assert folder.path("again.yaml").read_text() == text == folder.path("plan.yaml").read_text()


def test_defaults_are_written_out_and_lists_stand_in_one_line(folder: Any) -> None:
    text = dump(load_job(folder.path("job.yaml")))
    assert "  betas: [0.9, 0.95]\n" in text
    assert "  mask_truncated: false\n" in text
    assert "  micro_batch_tokens: [1024, 2048, 4096, 8192]\n" in text


def test_documents_are_frozen(folder: Any) -> None:
    cluster = load_cluster(folder.path("cluster.yaml"))
    with pytest.raises(ValueError, match="frozen"):
        cluster.name = "other"  # type: ignore[misc]


def test_numbers_and_words_follow_yaml_1_2() -> None:
    text = "a: 1e-3\nb: no\nc: 24_000\nd: 007\ne: 12:30\nf: 2026-01-02\ng: True\nh: .5\ni: -3\nj: '1'\nk: 0x1F\n"
    assert parse(text, "x").value == {
        "a": 1e-3, "b": "no", "c": 24000, "d": 7.0, "e": "12:30", "f": "2026-01-02",
        "g": True, "h": 0.5, "i": -3, "j": "1", "k": "0x1F",
    }  # fmt: skip


def test_a_byte_order_mark_is_skipped(folder: Any) -> None:
    file = folder.path("job.yaml")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_job(file).name == "keyhunt"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    atomic_write(file, "old\n")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(file, "new \ud800\n")
    assert file.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_rewritten_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    atomic_write(file, "old\n")
    file.chmod(0o640)
    atomic_write(file, "new\n")
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(InputError, match="no such file"):
        sha256_file(tmp_path / "b")


def test_an_error_at_a_key_that_is_not_written_out_stands_at_the_enclosing_one(folder: Any) -> None:
    job = folder.path("job.yaml")
    line = job.read_text().splitlines().index("algorithm:") + 1
    assert error_at(job, ("algorithm", "betas", 1), "x").line == line
    assert error_at(folder.path("none.yaml"), ("a",), "x").line is None


def nodes(node):
    """Values, styles, tags and lines of a node and of the nodes below it."""
    value = node.value if isinstance(node, yaml.ScalarNode) else [part for item in node.value for part in flat(item)]
    return [(node.tag, getattr(node, "style", None), node.start_mark.line, value)]


def flat(item):
    return [part for node in (item if isinstance(item, tuple) else (item,)) for part in nodes(node)]


@pytest.mark.parametrize(
    "text",
    [
        *(path.read_text() for path in sorted((Path(rlplan.__file__).parent / "plans" / "examples").rglob("*.yaml"))),
        "a: null\nb: 'null'\nc: \"1\"\nd: |\n  1\n  2\ne: >-\n  x\nf:\n- - 1\n  - {k: [é, 2]}\n",
    ],
    ids=lambda text: text[:20],
)
def test_libyaml_and_pyyaml_read_the_same(text):
    assert nodes(yaml_doc._composed(yaml_doc._FastLoader(text))) == nodes(yaml_doc._composed(yaml_doc._Loader(text)))
