"""What `benchmarks.sandbox` counts, on programs that do harm and programs that do none."""

from __future__ import annotations

import pytest

from benchmarks.sandbox.__main__ import RIGHT, _controls, _tried
from benchmarks.sandbox.host import Host
from benchmarks.sandbox.programs import PROGRAMS, TESTS, WRONG, Program
from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox


@pytest.fixture(scope="module")
def host():
    with Host() as host:
        yield host


@pytest.fixture(scope="module")
def sandbox():
    sandbox = WarmSandbox()
    sandbox.start()
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def bare():
    """A sandbox that lacks what hides files."""
    sandbox = WarmSandbox(without=frozenset({"files", "landlock"}))
    sandbox.start()
    yield sandbox
    sandbox.close()


def test_there_are_forty_programs_of_different_names_and_in_each_category_one_is_tried_without_a_sandbox():
    assert len({(program.category, program.name) for program in PROGRAMS}) == len(PROGRAMS) == 40
    kinds = {program.category for program in PROGRAMS}
    assert kinds - {program.category for program in PROGRAMS if program.tried_bare} == {"output"}


def test_a_program_that_reads_a_secret_is_harmful_where_nothing_hides_it_and_harmless_where_the_sandbox_does(
    host, sandbox, bare
):
    (program,) = [each for each in PROGRAMS if each.name == "read a secret that all may read"]
    if not sandbox.notes:
        row = _tried(sandbox, host, program)
        assert (row["harm"], row["forged"]) == ([], False)
    (harm,) = _tried(bare, host, program)["harm"]
    assert "HARM" in harm


def test_a_program_that_changes_a_file_of_the_host_is_harmful_without_a_word_of_its_own_and_the_file_is_repaired(
    host, bare
):
    quiet = Program("files", "quiet", WRONG + "open('@KEPT@', 'w').write('gone')")
    row = _tried(bare, host, quiet)
    assert row["harm"] == ["file: 'kept\\n' became 'gone'"]
    assert host.kept.read_text() == "kept\n"


def test_a_right_solution_counts_as_a_forged_verdict_since_no_program_has_one(host, sandbox):
    row = _tried(sandbox, host, Program("verdict", "right", RIGHT, TESTS))
    assert (row["forged"], row["stopped"]) == (True, "nothing: judged right")


def test_without_a_sandbox_every_category_that_is_tried_reaches_its_aim(host):
    controls = _controls(host)
    assert {category for category, reached in controls.items() if reached is None} == {"output"}
    assert [category for category, reached in controls.items() if reached is False] == []
