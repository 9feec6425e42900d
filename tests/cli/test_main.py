"""The command line as a user meets it: quick help, one clear line for bad input, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from .command_line import refused, rlplan


def test_help_names_every_command_and_answers_almost_as_fast_as_python_starts():
    def seconds(*command):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            output = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, cwd="/", check=True
            ).stdout
            times.append(time.perf_counter() - began)
        return min(times), output

    bare, _ = seconds("-c", "pass")
    helped, output = seconds("-m", "rlplan.cli.main", "--help")
    for command in ("init", "profile", "solve", "simulate", "execute", "report", "tune"):
        assert command in output
    assert helped - bare < 0.5


@pytest.mark.parametrize("command", ["profile", "solve", "simulate", "execute", "report", "tune"])
def test_a_missing_file_is_one_line_that_names_it_and_exit_code_2(command, tmp_path):
    refused(rlplan(command, tmp_path / "nowhere.yaml"), "nowhere.yaml")


def test_a_truncated_plan_is_named_with_its_line_and_nothing_is_written(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text('rlplan: 1\ninputs:\n  cluster: {path: "cluster.yaml", sha\n')
    out = tmp_path / "out"
    refused(rlplan("execute", plan, "--out", out), "plan.yaml:3")
    assert not out.exists()


def test_an_unknown_key_in_a_plan_is_named_with_its_line(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text("rlplan: 1\nrounnds: 2\n")
    refused(rlplan("execute", plan), "plan.yaml:2", "rounnds")


def test_a_report_of_a_damaged_trace_names_its_line(tmp_path):
    (tmp_path / "trace.jsonl").write_text('{"event":"run"}\nnot json\n{"event":"end"}\n')
    refused(rlplan("report", tmp_path), "plan.yaml")


def test_an_unknown_option_is_one_usage_error_with_exit_code_2():
    result = rlplan("solve", "--no-such-option")
    assert result.returncode == 2 and "no-such-option" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("package", ["torch", "ray", "vllm"])
def test_without_the_executors_packages_a_command_that_needs_them_says_so(package, monkeypatch, capsys):
    from rlplan.cli import main

    def needs(*arguments, **options):
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(main.cli, "main", needs)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error == f"error: this command needs {package}; install rlplan[cpu] or rlplan[gpu]\n"


def test_version_is_the_packages(capsys):
    import rlplan as package

    assert package.__version__ in rlplan("--version").stdout
    assert json.loads(json.dumps(package.__version__)) == package.__version__
