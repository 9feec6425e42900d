"""The scripts of docs/cluster: they parse, call Slurm, Ray and rlplan as meant, and do start and end a real Ray.

Slurm's commands are stand-ins, which note how they are called and run what srun would run on the nodes on this machine.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from rlplan.cli.execute import execute_command

from .cluster_files import BATCH, HOSTS, SCONTROL, SRUN, TRAIN, WAITS, Commands, until

SLURM = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "3", "SLURM_GPUS_ON_NODE": "8", "HEAD_IP": "10.0.0.1"}
ADDRESS = {"RAY_ADDRESS": "10.0.0.1:6379"}
WAITS_FOR_TERM = """
trap 'kill -9 $!; exit 130' TERM
/bin/sleep 60 &
touch "$1"
wait
"""
SIGNALS = pytest.mark.parametrize(
    ("sent", "queued_again"), [(signal.SIGUSR1, [["requeue", "77"]]), (signal.SIGTERM, [])]
)


@pytest.fixture
def commands(tmp_path):
    """Slurm with three nodes of which all come up; Ray's daemons wait until they are ended."""
    stand_ins = Commands(tmp_path / "bin")
    stand_ins.add("srun", SRUN)
    stand_ins.add("scontrol", SCONTROL)
    stand_ins.add("ray", WAITS)
    stand_ins.add("python", f"tr '\\035' '\\n' <{stand_ins.calls} | grep -c ^ray.start; exit 0")  # nodes that are alive
    stand_ins.add("rlplan")
    stand_ins.add("sleep", "exec /bin/sleep 0.02")
    return stand_ins


@pytest.mark.parametrize(("shell", "path"), [("bash", BATCH), ("sh", TRAIN), ("bash", TRAIN)])
def test_the_scripts_parse(shell, path):
    parsed = subprocess.run([shell, "-n", path], capture_output=True, text=True)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_the_batch_script_starts_head_and_workers_on_their_nodes(commands):
    code, output = commands.ended("bash", BATCH, "rlplan", "check", "plan.yaml", env=SLURM)
    assert code == 0, output
    head, workers = commands.made("srun")
    assert {"--nodes=1", "--ntasks=1", f"--nodelist={HOSTS[0]}"} <= set(head)
    assert {"--nodes=2", "--ntasks-per-node=1", f"--exclude={HOSTS[0]}"} <= set(workers)
    on_head, *on_workers = commands.made("ray")
    assert {"--head", "--num-gpus=8", "--node-ip-address=10.0.0.1", "--port=6379"} <= set(on_head)
    assert len(on_workers) == 2 and on_workers[0] == on_workers[1]
    assert {"--num-gpus=8", "--address=10.0.0.1:6379"} <= set(on_workers[0])
    assert commands.made("rlplan") == [["check", "plan.yaml"]]
    assert commands.environment("rlplan")["RAY_ADDRESS"] == "10.0.0.1:6379"
    secret = {name: commands.environment(name)["RAY_AUTH_TOKEN"] for name in ("ray", "rlplan")}
    assert secret["ray"] == secret["rlplan"] and commands.environment("ray")["RAY_AUTH_MODE"] == "token"


@SIGNALS
def test_a_signal_reaches_the_run_which_ends_with_a_checkpoint(commands, tmp_path, sent, queued_again):
    commands.add("rlplan", WAITS_FOR_TERM)
    running = commands.run("bash", BATCH, "rlplan", tmp_path / "begun", env=SLURM)
    until((tmp_path / "begun").exists)
    running.send_signal(sent)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert commands.made("scontrol")[1:] == queued_again


@SIGNALS
def test_a_signal_that_comes_before_the_run_begins_ends_the_job(commands, sent, queued_again):
    commands.add("python", "echo 0")
    running = commands.run("bash", BATCH, "rlplan", env=SLURM)
    until(lambda: bool(commands.made("ray")))
    running.send_signal(sent)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert commands.made("scontrol")[1:] == queued_again and commands.made("rlplan") == []


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_finished_or_failed_is_not_queued_again(commands, tmp_path, code):
    commands.add("rlplan", WAITS_FOR_TERM.replace("130", str(code)))
    running = commands.run("bash", BATCH, "rlplan", tmp_path / "begun", env=SLURM)
    until((tmp_path / "begun").exists)
    running.send_signal(signal.SIGUSR1)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == code, output
    assert len(commands.made("scontrol")) == 1


def test_the_batch_script_ends_if_ray_does_not_start(commands):
    commands.add("ray", "echo no such address; exit 1")
    commands.add("python", "echo 0")
    code, output = commands.ended("bash", BATCH, "rlplan", env=SLURM)
    assert code == 1 and commands.made("rlplan") == []
    assert "no such address" in output and "a step that starts Ray has ended" in output


def test_the_batch_script_says_how_many_nodes_it_waited_for(commands):
    commands.add("python", "echo 1")
    code, output = commands.ended("bash", BATCH, "rlplan", env={**SLURM, "RAY_START_SECONDS": "0"})
    assert code == 1 and "fewer than 3 nodes joined Ray within 0 s at 10.0.0.1:6379" in output


@pytest.mark.parametrize("begun", [False, True])
def test_train_starts_a_run_or_continues_one_with_a_checkpoint(commands, tmp_path, begun):
    out = tmp_path / "out"
    if begun:
        (out / "checkpoints" / "step-000010").mkdir(parents=True)
    options = ["--steps", "1000", "--grace-s", "600"]
    code, output = commands.ended("sh", TRAIN, "plan.yaml", out, *options, env=ADDRESS)
    assert code == 0, output
    called = commands.made("rlplan")
    parsed = [execute_command.make_context("execute", words[1:]).params for words in called]
    assert [words[0] for words in called] == ["execute", "execute"]
    assert [params["dry_run"] for params in parsed] == [True, False]
    assert all((params["out"], params["resume"]) == (out, begun) for params in parsed)
    assert (parsed[1]["steps"], parsed[1]["grace_s"]) == (1000, 600.0)


def test_train_starts_nothing_that_the_dry_run_refuses_or_without_a_cluster(commands, tmp_path):
    commands.add("rlplan", 'case "$*" in *--dry-run*) exit 2 ;; esac')
    code, output = commands.ended("sh", TRAIN, "plan.yaml", tmp_path / "out", env={})
    assert code == 2 and "RAY_ADDRESS" in output and commands.made("rlplan") == []
    code, _ = commands.ended("sh", TRAIN, "plan.yaml", tmp_path / "out", env=ADDRESS)
    assert code == 2 and len(commands.made("rlplan")) == 1


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


def of_session(folder):
    """The processes of the Ray cluster that keeps its session in `folder`."""
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if any(str(folder) in word for word in p.info["cmdline"] or ())]


@pytest.fixture
def session():
    """A short folder, since Ray's sockets lie in it; what is left of its Ray is ended."""
    folder = Path(tempfile.mkdtemp(prefix="rs"))
    yield folder
    for process in of_session(folder):
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def begun(stand_ins, session, nodes):
    """The batch script on two nodes, as soon as its command has written the nodes of Ray to `nodes`.

    Ray gives a node 30 s to start, which a busy machine may exceed; the script then ends, and is started again here.
    """
    env = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "2", "SLURM_GPUS_ON_NODE": "3", "RLPLAN_CORES": "1",
           "RAY_TMPDIR": str(session)}  # fmt: skip
    for _ in range(4):
        with socket.socket() as listener:
            listener.bind(("", 0))
            port = {"RAY_PORT": str(listener.getsockname()[1])}
        running = stand_ins.run("bash", BATCH, sys.executable, "-c", NODES_THEN_TERM, nodes, env=env | port)
        until(lambda running=running: nodes.exists() or running.poll() is not None, 200)
        if nodes.exists():
            return running
        output = running.communicate()[0]
        assert "timed out during startup" in output, output
    raise AssertionError("Ray never started within its 30 s")


@pytest.mark.search
def test_the_batch_script_starts_and_ends_a_real_ray(tmp_path, session):
    stand_ins = Commands(tmp_path / "bin")
    for name, body in (("srun", SRUN), ("scontrol", SCONTROL), ("rlplan", "")):
        stand_ins.add(name, body)
    nodes = tmp_path / "nodes.json"
    running = begun(stand_ins, session, nodes)
    try:
        daemons = [process.name() for process in of_session(session)]
        assert daemons.count("raylet") == 2 and daemons.count("gcs_server") == 1
        resources = json.loads(nodes.read_text(encoding="utf-8"))
        assert [(node["rlplan_core"], node["GPU"]) for node in resources] == [(1.0, 3.0), (1.0, 3.0)]
        running.send_signal(signal.SIGUSR1)
        output, _ = running.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing is left, unless the test failed
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130, output
    assert stand_ins.made("scontrol")[-1] == ["requeue", "77"]
    until(lambda: of_session(session) == [], 30)
