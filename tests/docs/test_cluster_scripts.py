"""The scripts of docs/cluster: they parse, call Slurm, Ray and rlplan as meant, and do start and end a real Ray.

Slurm's commands are stand-ins, which note how they are called and run what srun would run on the nodes on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlplan.cli.execute import execute_command

from .cluster_files import BATCH, HOSTS, SCONTROL, SRUN, TRAIN, Commands, until

SLURM = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "3", "SLURM_GPUS_ON_NODE": "8", "HEAD_IP": "10.0.0.1"}
WAITS_FOR_TERM = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
with open(sys.argv[1], "w"):
    time.sleep(60)
"""


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Slurm with three nodes of which all come up; Ray's daemons wait until they are ended."""
    stand_ins = Commands(tmp_path / "bin")
    stand_ins.add("srun", SRUN)
    stand_ins.add("scontrol", SCONTROL)
    stand_ins.add("ray", "time.sleep(60)")
    stand_ins.add("python", f"print(open({str(stand_ins.calls)!r}).read().count('[\"ray\"'))")  # nodes that are alive
    stand_ins.add("rlplan")
    return stand_ins


@pytest.mark.parametrize(("shell", "path"), [("bash", BATCH), ("sh", TRAIN), ("bash", TRAIN)])
def test_the_scripts_parse(shell, path):
    parsed = subprocess.run([shell, "-n", path], capture_output=True, text=True)
    assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore")  # what Ray's command line imports is deprecated in pydantic
def test_the_batch_script_starts_the_head_on_the_first_node_and_workers_on_the_others(commands):
    from ray.scripts.scripts import start

    running = commands.run("bash", BATCH, "rlplan", "check", "plan.yaml", env=SLURM)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    head, workers = commands.made("srun")
    assert {"--nodes=1", "--ntasks=1", f"--nodelist={HOSTS[0]}"} <= set(head)
    assert {"--nodes=2", "--ntasks-per-node=1", f"--exclude={HOSTS[0]}"} <= set(workers)
    on_head, *on_workers = commands.made("ray")
    assert "--head" in on_head and len(on_workers) == 2 and on_workers[0] == on_workers[1]
    started = [start.make_context("start", words[1:]).params for words in (on_head, on_workers[0])]
    assert [params["num_gpus"] for params in started] == [8, 8]
    assert (started[0]["node_ip_address"], started[0]["port"]) == ("10.0.0.1", 6379)
    assert started[1]["address"] == "10.0.0.1:6379"
    assert commands.made("rlplan") == [["check", "plan.yaml"]]
    assert commands.environment("rlplan")["RAY_ADDRESS"] == "10.0.0.1:6379"
    secret = {name: commands.environment(name)["RAY_AUTH_TOKEN"] for name in ("ray", "rlplan")}
    assert secret["ray"] == secret["rlplan"] and commands.environment("ray")["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize(("sent", "queued_again"), [(signal.SIGUSR1, [["requeue", "77"]]), (signal.SIGTERM, [])])
def test_a_signal_to_the_batch_script_reaches_the_run_which_ends_with_a_checkpoint(
    commands, tmp_path, sent, queued_again
):
    commands.add("rlplan", WAITS_FOR_TERM)
    running = commands.run("bash", BATCH, "rlplan", tmp_path / "begun", env=SLURM)
    until((tmp_path / "begun").exists, 60)
    running.send_signal(sent)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert commands.made("scontrol")[1:] == queued_again


@pytest.mark.parametrize(("sent", "queued_again"), [(signal.SIGUSR1, [["requeue", "77"]]), (signal.SIGTERM, [])])
def test_a_signal_that_comes_before_the_run_begins_ends_the_job(commands, sent, queued_again):
    commands.add("python", "print(0)")
    running = commands.run("bash", BATCH, "rlplan", env=SLURM)
    until(lambda: bool(commands.made("ray")), 60)
    running.send_signal(sent)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert commands.made("scontrol")[1:] == queued_again
    assert commands.made("rlplan") == []


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_finished_or_failed_is_not_queued_again(commands, tmp_path, code):
    commands.add("rlplan", WAITS_FOR_TERM.replace("130", str(code)))
    running = commands.run("bash", BATCH, "rlplan", tmp_path / "begun", env=SLURM)
    until((tmp_path / "begun").exists, 60)
    running.send_signal(signal.SIGUSR1)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == code, output
    assert len(commands.made("scontrol")) == 1


def test_the_batch_script_ends_if_ray_does_not_start(commands):
    commands.add("ray", "sys.exit('no such address')")
    commands.add("python", "time.sleep(0.2)\nprint(0)")
    running = commands.run("bash", BATCH, "rlplan", env=SLURM)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "no such address" in output and "a step that starts Ray has ended" in output
    assert commands.made("rlplan") == []


def test_the_batch_script_says_how_many_nodes_it_waited_for(commands):
    commands.add("python", "print(1)")
    running = commands.run("bash", BATCH, "rlplan", env={**SLURM, "RAY_START_SECONDS": "1"})
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "fewer than 3 nodes joined Ray within 1 s at 10.0.0.1:6379" in output


@pytest.mark.parametrize("begun", [False, True])
def test_train_starts_a_run_or_continues_the_one_that_has_a_checkpoint(commands, tmp_path, begun):
    out = tmp_path / "out"
    if begun:
        (out / "checkpoints" / "step-000010").mkdir(parents=True)
    options = ["--steps", "1000", "--grace-s", "600"]
    running = commands.run("sh", TRAIN, "plan.yaml", out, *options, env={"RAY_ADDRESS": "10.0.0.1:6379"})
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    called = commands.made("rlplan")
    parsed = [execute_command.make_context("execute", words[1:]).params for words in called]
    assert [words[0] for words in called] == ["execute", "execute"]
    assert [params["dry_run"] for params in parsed] == [True, False]
    assert all((params["out"], params["resume"]) == (out, begun) for params in parsed)
    assert (parsed[1]["steps"], parsed[1]["grace_s"]) == (1000, 600.0)


def test_train_does_not_start_what_the_dry_run_refuses(commands, tmp_path):
    commands.add("rlplan", "sys.exit(2 if '--dry-run' in sys.argv else 0)")
    running = commands.run("sh", TRAIN, "plan.yaml", tmp_path / "out", env={"RAY_ADDRESS": "10.0.0.1:6379"})
    running.communicate(timeout=60)
    assert running.returncode == 2 and len(commands.made("rlplan")) == 1


def test_train_does_not_start_without_a_cluster(commands, tmp_path):
    running = commands.run("sh", TRAIN, "plan.yaml", tmp_path / "out", env={})
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 2 and "RAY_ADDRESS" in output
    assert commands.made("rlplan") == []


NODES_THEN_TERM = """
import json, os, signal, sys, time
import ray
ray.init(address=os.environ["RAY_ADDRESS"], logging_level="ERROR", log_to_driver=False)
signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
with open(sys.argv[1] + ".part", "w") as file:
    json.dump([node["Resources"] for node in ray.nodes() if node["Alive"]], file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(120)
"""


def of_session(folder: Path) -> list[psutil.Process]:
    """The processes of the Ray cluster that keeps its session in `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.fixture
def session() -> Iterator[Path]:
    """A short folder, since Ray's sockets lie in it; what is left of its Ray is ended."""
    folder = Path(tempfile.mkdtemp(prefix="rs"))
    yield folder
    for process in of_session(folder):
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def begun(stand_ins: Commands, session: Path, nodes: Path) -> subprocess.Popen[str]:
    """The batch script on two nodes, as soon as its command has written the nodes of Ray to `nodes`.

    Ray gives a node 30 s to start, which a busy machine may exceed; the script then ends, and is started again here.
    """
    for _ in range(4):
        env = {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "2",
            "RLPLAN_CORES": "1",
            "RAY_PORT": str(free_port()),
            "RAY_TMPDIR": str(session),
        }
        running = stand_ins.run("bash", BATCH, sys.executable, "-c", NODES_THEN_TERM, nodes, env=env)
        until(lambda running=running: nodes.exists() or running.poll() is not None, 200)
        if nodes.exists():
            return running
        output = running.communicate()[0]
        assert "timed out during startup" in output, output
    raise AssertionError("Ray never started within its 30 s")


def test_the_batch_script_starts_a_real_ray_of_two_nodes_and_ends_it_again(tmp_path, session):
    stand_ins = Commands(tmp_path / "bin")
    stand_ins.add("srun", SRUN)
    stand_ins.add("scontrol", SCONTROL)
    stand_ins.add("rlplan")
    nodes = tmp_path / "nodes.json"
    running = begun(stand_ins, session, nodes)
    try:
        daemons = [process.name() for process in of_session(session)]
        assert daemons.count("raylet") == 2 and daemons.count("gcs_server") == 1
        resources = json.loads(nodes.read_text(encoding="utf-8"))
        assert [node["rlplan_core"] for node in resources] == [1.0, 1.0]
        running.send_signal(signal.SIGUSR1)
        output, _ = running.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing is left, unless the test failed
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130, output
    assert stand_ins.made("scontrol")[-1] == ["requeue", "77"]
    until(lambda: of_session(session) == [], 30)


def free_port() -> int:
    """A port of this machine that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
