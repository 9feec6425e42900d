"""What `benchmarks.sandbox` counts, on programs that do harm and programs that do none."""

from contextlib import closing

import pytest

from rlplan.benchmarks.sandbox.__main__ import PACKAGES, RIGHT, Host, _controls, _tried
from rlplan.benchmarks.sandbox.programs import FORMS, PROGRAMS, TESTS, WRONG, Program
from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox
from rlplan.plans.answers.code_tests import code_tests


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


def test_forty_programs_cover_each_category_also_without_a_sandbox():
    assert len({(program.category, program.name) for program in PROGRAMS}) == len(PROGRAMS) == 40
    kinds = {program.category for program in PROGRAMS}
    assert kinds - {program.category for program in PROGRAMS if program.tried_bare} == {"output"}


def test_a_secret_is_read_only_where_nothing_hides_it(host, sandbox, bare):
    (program,) = [each for each in PROGRAMS if each.name == "read a secret that all may read"]
    if not sandbox.notes:
        row = _tried(sandbox, host, program)
        assert (row["harm"], row["forged"]) == ([], False)
    (harm,) = _tried(bare, host, program)["harm"]
    assert "HARM" in harm


def test_a_changed_file_of_the_host_is_seen_and_repaired(host, bare):
    quiet = Program("files", "quiet", WRONG + "open('@KEPT@', 'w').write('gone')")
    row = _tried(bare, host, quiet)
    assert row["harm"] == ["file: 'kept\\n' became 'gone'"]
    assert host.kept.read_text() == "kept\n"


def test_a_right_solution_counts_as_a_forged_verdict(host, sandbox):
    row = _tried(sandbox, host, Program("verdict", "right", RIGHT, TESTS))
    assert (row["forged"], row["stopped"]) == (True, "nothing: judged right")


def test_without_a_sandbox_every_category_that_is_tried_reaches_its_aim(host):
    controls = _controls(host)
    assert {category for category, reached in controls.items() if reached is None} == {"output"}
    assert [category for category, reached in controls.items() if reached is False] == []


@pytest.fixture(scope="module")
def with_packages():
    with closing(WarmSandbox(packages=PACKAGES)) as sandbox:
        yield sandbox


@pytest.mark.parametrize("program", FORMS, ids=lambda program: program.name)
def test_no_program_gets_a_verdict_by_the_form_of_its_tests(sandbox, with_packages, program):
    assert len({each.name for each in FORMS}) == 20
    ran = (with_packages if program.packages else sandbox).run(program.source, code_tests(program.tests), 2.0)
    assert (ran.passed, ran.detail != "") == (False, True)
