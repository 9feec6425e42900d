"""`rlplan export`: files are written once, and the result is one JSON line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import rlplan
from rlplan.cli.export import export_command
from rlplan.plans.yaml.errors import InputError

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"


def run(*arguments):
    return CliRunner().invoke(export_command, list(map(str, arguments)), standalone_mode=False)


def test_the_result_names_files_launch_and_decisions(tmp_path):
    result = run(EXAMPLES / "math-32b.yaml", "--to", "verl", "--out", tmp_path / "v", "--json")
    facts = json.loads(result.output)
    assert facts["files"] == sorted(path.name for path in (tmp_path / "v").iterdir())
    assert facts["launch"] == "bash run.sh"
    assert set(facts["decisions"][0]) == {"decision", "status", "key", "value", "cost"}
    assert {each["status"] for each in facts["decisions"]} == {"mapped", "approximated", "not expressible"}


def test_a_folder_with_files_is_left_alone_without_force(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty \(notes\.txt\)"):
        raise run(EXAMPLES / "cpu-demo.yaml", "--to", "trl", "--out", tmp_path).exception
    assert run(EXAMPLES / "cpu-demo.yaml", "--to", "trl", "--out", tmp_path, "--force").exception is None
    assert (tmp_path / "train.py").is_file()


def test_jobs_of_a_group_have_a_folder_each(tmp_path):
    result = run(EXAMPLES / "groups.yaml", "--to", "slime", "--out", tmp_path, "--json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(json.loads(result.output)["jobs"])


def test_the_list_puts_what_is_lost_first(tmp_path):
    text = run(EXAMPLES / "cpu-demo.yaml", "--to", "openrlhf", "--out", tmp_path / "o").output
    assert text.index("not expressible: ") < text.index("approximated: ") < text.index("mapped: ")
    assert text.splitlines()[-1] == "start it there: bash run.sh"
