"""Where the actors of trainer ranks run, what they see of their node, and what they hand on to their trainer."""

import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlplan.executor.processes import host
from rlplan.executor.processes.actors import ACTOR_OPTIONS, OVERRIDE
from rlplan.executor.trainer import trainer_group
from rlplan.executor.trainer.policy.rank_mesh import meeting_store
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_group import TRAINER_METHODS, TrainerRank, spawn_ranks
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.algorithm import Algorithm

CONFIG = TrainerConfig(
    "m", Algorithm(name="grpo", learning_rate=0.1), UpdateSettings(1), 2, 1.0, Divisors(1.0, 1.0, 1), ranks=3, threads=7
)
PLAIN = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


def seat(node, cores, gpus=(), stays_on=()):
    return SimpleNamespace(node_id=node, node_cores=cores, gpus=gpus, stays_on=stays_on)


@pytest.fixture
def spawned(monkeypatch):
    """The actors that were made: options, arguments, and what is called in them."""
    made = []

    def remote(concurrency_groups):
        assert concurrency_groups == {trainer_group.PULSE_GROUP: 1, trainer_group.WRITER_GROUP: 1}

        def actor(options, arguments):
            called = []
            call = SimpleNamespace(remote=lambda *asked: called.append(asked))
            made.append(SimpleNamespace(options=options, arguments=arguments, called=called, __ray_call__=call))
            return made[-1]

        def of_class(kind):
            assert kind is TrainerRank
            return SimpleNamespace(
                options=lambda **options: SimpleNamespace(remote=lambda *arguments: actor(options, arguments))
            )

        return of_class

    monkeypatch.setattr(trainer_group, "ray", SimpleNamespace(remote=remote))
    return made


def test_ranks_without_seats_run_anywhere_with_the_plans_threads(spawned):
    assert spawn_ranks(CONFIG, []) == spawned
    for rank, actor in enumerate(spawned):
        environment = PLAIN | {"CUDA_VISIBLE_DEVICES": ""}
        assert actor.options == ACTOR_OPTIONS | {"runtime_env": {"env_vars": environment}}
        assert actor.arguments == (CONFIG, rank)
        assert actor.called == [(trainer_group._guard, ())]


def test_ranks_share_the_cores_of_their_node_and_see_its_gpus(spawned):
    one, other = "a" * 56, "b" * 56
    seats = [seat(one, 9, ("0", "1")), seat(other, 1, stays_on=(2, 3)), seat(one, 9, ("0", "1"))]
    spawn_ranks(replace(CONFIG, device="cuda"), seats)
    assert [actor.arguments[0].threads for actor in spawned] == [4, 1, 4]
    for actor, where in zip(spawned, seats, strict=True):
        assert actor.options["scheduling_strategy"].node_id == where.node_id
        assert actor.called == [(trainer_group._guard, where.stays_on)]
    environments = [actor.options["runtime_env"]["env_vars"] for actor in spawned]
    assert environments[0] == PLAIN | {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0,1", OVERRIDE: "0"}
    assert environments[1] == PLAIN | {"OMP_NUM_THREADS": "1"}


def test_a_rank_hands_on_to_the_trainer_that_it_constructs(monkeypatch):
    made = []

    class Fake:
        def __init__(self, *arguments):
            made.append(arguments)

        def parameters(self):
            return 12.0

        def trained_parameters(self):
            return 5.0

        pairs = 0.5

        def __getattr__(self, name):
            return lambda *arguments: (name, arguments)

    monkeypatch.setattr("rlplan.executor.trainer.trainer_rank.Trainer", Fake)
    rank = TrainerRank(CONFIG, 2)
    with pytest.raises(AssertionError, match="step before construct"):
        rank.step([])
    assert rank.construct("tcp://here:1") == (12, 5, 0.5) and made == [(CONFIG, 2, "tcp://here:1")]
    for name in TRAINER_METHODS:
        assert callable(getattr(Trainer, name)) and getattr(rank, name)(1, 2) == (name, (1, 2))
    assert int(rank.meeting_point().rpartition(":")[2]) > 0 and rank.pid() > 0


def test_a_meeting_point_listens_at_one_address_for_who_has_its_nonce():
    address = TrainerRank(CONFIG, 0).meeting_point()
    name, _, port = address.rpartition(":")
    served = meeting_store(f"{address}/nonce", leads=True)
    tables = (Path("/proc/net", table).read_text() for table in ("tcp", "tcp6"))
    listening = [line.split()[1] for table in tables for line in table.splitlines()[1:]]
    where = socket.inet_aton(name)[::-1].hex().upper()
    assert {each for each in listening if each.endswith(f":{int(port):04X}")} == {f"{where}:{int(port):04X}"}
    served.set("who", "rank 0")
    assert meeting_store(f"{address}/nonce", leads=False).get("who") == b"rank 0"
    stranger = meeting_store(f"{address}/guessed", leads=False)
    with pytest.raises(RuntimeError, match=r"(?i)timeout"):
        stranger.wait(["who"], timedelta(seconds=0.2))
    with pytest.raises(ConnectionError, match="no rank can listen at"):
        meeting_store(f"{address}/another", leads=True)


def test_gloo_listens_where_the_cluster_reaches_this_host(monkeypatch):
    monkeypatch.setattr(host, "node_address", lambda: "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine0")
    host.stay_on_cluster_interface()
    assert host.os.environ["GLOO_SOCKET_IFNAME"] == "mine0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    host.stay_on_cluster_interface()
    assert host.os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
