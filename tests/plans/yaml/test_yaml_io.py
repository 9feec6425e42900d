"""Canonical text: round trips, byte identity, and agreement with a second YAML reader."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import rlplan
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml import yaml_doc
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import dump, error_at, loads, number, sha256_file, write

from ..conftest import JOB, PLAN_TEXT
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


@relaxed
@given(st.dictionaries(texts | awkward, values, min_size=1, max_size=5))
def test_what_is_written_is_read_back_with_its_types_and_by_others(document):
    text = write(document)
    again = parse(text, "x").value
    assert again == document == yaml.safe_load(text)
    assert repr(again).replace("-0.0", "0.0") == repr(document).replace("-0.0", "0.0")  # 1 == 1.0 == True
    assert write(again) == text and text.endswith("\n") and "\r" not in text and "\t" not in text


@relaxed
@given(finite)
def test_a_float_keeps_its_value_and_stays_a_float(value):
    assert parse(f"x: {number(value)}", "x").value["x"] == value
    again = parse(f"x: {number(value, 6)}", "x").value["x"]
    assert isinstance(again, float) and math.isclose(again, value, rel_tol=5.1e-6)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (2.0, "2.0"), (-0.0, "0.0"), (1e-9, "1.0e-09"), (1234567.0, "1234570.0"), (1e22, "1.0e+22"),
        (0.1 + 0.2, "0.3"), (1 / 3, "0.333333"),
    ],
)  # fmt: skip
def test_floats_have_one_spelling(value, text):
    assert number(value, 6) == text


def survives(document):
    """A document survives its text, which is the same again; a plan that is cut before its last line is refused."""
    text = dump(document)
    again = loads(text, type(document))
    assert dump(again) == text and again == document
    assert dump(loads(dump(document, digits=6), type(document))) == dump(document, digits=6)
    lines = text.splitlines(keepends=True)
    for count in range(1, len(lines), 12) if isinstance(document, Plan) else ():
        with pytest.raises(InputError):
            loads("".join(lines[:count]), type(document))


def test_a_document_survives_dump_and_load():
    settings(relaxed, max_examples=8)(given(st.one_of(clusters(), plans()))(survives))()


@pytest.mark.search
def test_many_documents_survive_dump_and_load():
    settings(relaxed, max_examples=100)(given(st.one_of(clusters(), plans()))(survives))()


def test_one_changed_value_changes_one_line():
    before = PLAN_TEXT.splitlines()
    after = dump(loads(PLAN_TEXT.replace("engines: 2, tp: 1", "engines: 1, tp: 1"), Plan)).splitlines()
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_defaults_are_written_in_the_models_order_and_lists_in_one_line(folder):
    head, tail = JOB.split("reward:\n")
    text = dump(loads(JOB, Job))
    assert dump(loads("reward:\n" + tail + head, Job)) == text
    assert "  betas: [0.9, 0.999]\n" in text and "  mask_truncated: false\n" in text
    assert "  micro_batch_tokens: [1024, 2048, 4096, 8192]\n" in text
    assert dump(loads(PLAN_TEXT, Plan), folder.path("again.yaml")) == PLAN_TEXT == folder.path("again.yaml").read_text()


def test_numbers_and_words_follow_yaml_1_2():
    text = "a: 1e-3\nb: no\nc: 24_000\nd: 7.0\ne: 12:30\nf: 2026-01-02\ng: True\nh: .5\ni: -3\nj: '1'\nk: 0x1F\n"
    assert parse(text, "x").value == {
        "a": 1e-3, "b": "no", "c": 24000, "d": 7.0, "e": "12:30", "f": "2026-01-02",
        "g": True, "h": 0.5, "i": -3, "j": "1", "k": "0x1F",
    }  # fmt: skip


def test_a_byte_order_mark_is_skipped(folder):
    folder.path("job.yaml").write_bytes(b"\xef\xbb\xbf" + JOB.encode())
    assert load_job(folder.path("job.yaml")).name == "keyhunt"


def test_a_digest_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_an_error_at_an_absent_key_stands_at_its_parent(folder):
    line = JOB.splitlines().index("algorithm:") + 1
    assert error_at(folder.path("job.yaml"), ("algorithm", "betas", 1), "x").line == line
    assert error_at(folder.path("none.yaml"), ("a",), "x").line is None


def nodes(node):
    """Values, styles, tags and lines of a node and of the nodes below it."""
    below = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
    value = node.value if isinstance(node, yaml.ScalarNode) else [nodes(part) for part in below]
    return [node.tag, getattr(node, "style", None), node.start_mark.line, value]


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
