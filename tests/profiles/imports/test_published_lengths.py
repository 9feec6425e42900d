"""Published traces: sources apart, steps as epochs, faults told with their line."""

import gzip

import pytest

from rlplan.plans.yaml.errors import InputError
from rlplan.tools.published_lengths import read_length_table

HEAD = "source,step,prompt_id,sample_id,response_tokens,reward\n"


def write(path, body, head=HEAD):
    path.write_text(head + body, encoding="utf-8")
    return path


def test_sources_are_traces_and_steps_are_epochs_plain_or_gzipped(tmp_path):
    text = HEAD + "b,400,p,0,429,0.5\nb,800,p,0,12.0,\na,0,q,1,0,1\n"
    for name, data in (("t.csv", text.encode()), ("t.csv.gz", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(data)
        traces = read_length_table(tmp_path / name)
        assert list(traces) == ["a", "b"]
        assert [(r.prompt, r.epoch, r.sample, r.tokens, r.reward) for r in traces["b"].rows] == [
            ("p", 400, 0, 429, 0.5),
            ("p", 800, 0, 12, 0.0),
        ]
        assert traces["a"].rows[0].tokens == 1
        assert not any(r.truncated for t in traces.values() for r in t.rows)


def test_a_named_cap_marks_what_it_cut(tmp_path):
    path = write(tmp_path / "t.csv", "a,0,p,0,99,\na,0,p,1,100,\na,0,p,2,130,\n")
    trace = read_length_table(path, 100)["a"]
    assert [(r.tokens, r.truncated) for r in trace.rows] == [(99, False), (100, True), (100, True)]
    assert trace.cap_tokens == 100


@pytest.mark.parametrize(
    ("body", "line", "complaint"),
    [
        ("a,0,p,0,many,1\n", 2, "response_tokens must be a number"),
        ("a,0,p,0,5,1\na,x,p,1,5,1\n", 3, "step must be a number"),
        ("a,0,p,0,-1,1\n", 2, "not be negative"),
        ("a,0,p,0,inf,1\n", 2, "finite"),
        ("a,0,p,0\n", 2, "response_tokens"),
        ("a,0,p,0,5,1\na,0,p,0,6,1\n", 3, "also in line 2"),
    ],
)
def test_a_faulty_row_is_named(tmp_path, body, line, complaint):
    path = write(tmp_path / "t.csv", body)
    with pytest.raises(InputError, match=complaint) as error:
        read_length_table(path)
    assert error.value.line == line


def test_files_that_are_no_such_table_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_length_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="has no column prompt_id"):
        read_length_table(write(tmp_path / "a.csv", "x\n", "source,step,sample_id,response_tokens,reward\n"))
    with pytest.raises(InputError, match="no rows"):
        read_length_table(write(tmp_path / "b.csv", ""))
    (tmp_path / "c.csv.gz").write_bytes(b"\x1f\x8bbroken")
    with pytest.raises(InputError, match="cannot be read"):
        read_length_table(tmp_path / "c.csv.gz")
