"""The client that asks verl's servers, against servers that answer at once. Needs verl (docs/verl.md)."""

import asyncio
from collections import deque
from importlib.metadata import entry_points

import pytest

pytest.importorskip("verl")
pytest.importorskip("transfer_queue")

from ray.exceptions import RayActorError
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.import_utils import load_class_from_fqn, load_extern_type
from verl.workers.rollout.replica import TokenOutput

from rlplan.frameworks.drive_round import EngineGone
from rlplan.frameworks.verl import verl_workers
from rlplan.frameworks.verl.verl_rounds import _BUFFER, _MANAGER
from rlplan.frameworks.verl.verl_workers import _LIMITS, CutoffClient, PlannedManager, SampleLimits
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.schedule import Schedule

END = 9


class Call:
    """An actor's method: `remote` is answered by `answer`."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def remote(self, *args, **kwargs):
        self.asked.append(args or kwargs)
        return asyncio.ensure_future(self.answer())


class Server:
    """Gives its answers in turn: tokens, or an error; None is waited for without end."""

    def __init__(self, *answers):
        self.answers, self.generate = deque(answers), Call(self._generate)

    async def _generate(self):
        answer = self.answers.popleft()
        if answer is None:
            await asyncio.sleep(3600)
        if isinstance(answer, Exception):
            raise answer
        return TokenOutput(token_ids=answer, log_probs=[-0.5] * len(answer), stop_reason="completed")


class Balancer:
    def __init__(self, server):
        async def nothing():
            return []

        async def chosen():
            return "here:1", server

        self.acquire_server, self.release_server = Call(chosen), Call(nothing)
        self.require_acquire_fields, self.require_release_fields = Call(nothing), Call(nothing)
        self.remove_servers = Call(nothing)


class Config:
    class actor_rollout_ref:
        class rollout:
            name = "vllm"


def asked(server, limits):
    """What the client makes of a sample with these limits."""
    balancer = Balancer(server)

    async def ask():
        _LIMITS.set(limits)
        client = CutoffClient(Config, balancer)
        return await client.generate("r", prompt_ids=[1, 2], sampling_params={"temperature": 1.0})

    try:
        return asyncio.run(ask()), balancer
    except EngineGone:
        return None, balancer


def test_verl_finds_the_parts_that_the_trainer_names():
    assert issubclass(load_extern_type(*_BUFFER), ReplayBuffer)
    assert load_class_from_fqn(_MANAGER, "AgentLoopManager") is verl_workers.PlannedManager


@pytest.mark.skipif(not entry_points(group="verl.plugins", name="rlplan"), reason="rlplan is not installed here")
def test_verl_has_loaded_the_trainer_by_its_entry_point():
    assert get_trainer_cls("rlplan").__name__ == "PlannedTrainer"


def test_a_short_rounds_sample_is_one_request_up_to_the_cutoff():
    server, limits = Server([5] * 8), SampleLimits(8, None, frozenset({END}), drops=True)
    output, _ = asked(server, limits)
    assert (limits.tokens, limits.truncated) == (8, True) and not limits.reached.is_set()
    assert server.generate.asked[0]["sampling_params"] == {"temperature": 1.0, "max_tokens": 8}
    assert len(output.token_ids) == 8


def test_a_response_that_ends_at_the_cutoff_is_not_truncated():
    limits = SampleLimits(8, None, frozenset({END}), drops=True)
    asked(Server([5] * 7 + [END]), limits)
    assert (limits.tokens, limits.truncated) == (8, False)


def test_a_long_rounds_sample_goes_on_from_its_cutoff():
    server, limits = Server([5] * 4, [6, 6, END]), SampleLimits(16, 4, frozenset({END}), drops=False)
    output, _ = asked(server, limits)
    assert output.token_ids == [5, 5, 5, 5, 6, 6, END] and len(output.log_probs) == 7
    assert (limits.tokens, limits.truncated, limits.reached.is_set()) == (7, False, True)
    second = server.generate.asked[1]
    assert second["prompt_ids"] == [1, 2, 5, 5, 5, 5] and second["sampling_params"]["max_tokens"] == 12


def test_a_long_rounds_short_sample_is_one_request():
    server, limits = Server([5, END]), SampleLimits(16, 4, frozenset({END}), drops=False)
    asked(server, limits)
    assert (limits.tokens, limits.reached.is_set(), len(server.generate.asked)) == (2, False, 1)


def test_a_dead_server_is_asked_no_more():
    output, balancer = asked(Server(RayActorError()), SampleLimits(8, None, frozenset(), drops=True))
    assert output is None
    assert balancer.remove_servers.asked == [(["here:1"],)]


def test_an_error_of_a_living_server_is_no_death():
    with pytest.raises(ValueError, match="no room"):
        asked(Server(ValueError("no room")), SampleLimits(8, None, frozenset(), drops=True))


def test_a_sample_that_is_stopped_ends_its_request_before_it_returns(monkeypatch):
    cancelled = []

    def cancel(request):
        cancelled.append(request)
        request.cancel()

    monkeypatch.setattr(verl_workers.ray, "cancel", cancel)
    server, limits = Server(None), SampleLimits(8, None, frozenset(), drops=True)
    balancer = Balancer(server)

    async def stopped():
        _LIMITS.set(limits)
        task = asyncio.ensure_future(CutoffClient(Config, balancer).generate("r", prompt_ids=[1], sampling_params={}))
        while limits.request is None:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled(), limits.request.done()

    assert asyncio.run(stopped()) == (True, True)
    assert cancelled == [limits.request]
    assert len(balancer.release_server.asked) == 1


def test_requests_without_limits_go_to_the_server_as_they_are():
    server = Server([5, 5])
    asked(server, None)
    assert server.generate.asked[0]["sampling_params"] == {"temperature": 1.0}


def test_workers_that_died_are_counted_over_all_rounds_of_a_step(monkeypatch):
    class Worker:
        def __init__(self, *errors):
            self.errors = deque(errors)
            self.decode = Call(self._decode)

        async def _decode(self):
            if self.errors:
                raise self.errors.popleft()
            return 5, False, 1.0

    manager = PlannedManager.__new__(PlannedManager)
    manager.agent_loop_workers, manager.restarts = [Worker(RayActorError())], 0
    manager._start_worker = lambda place: Worker()
    monkeypatch.setattr(verl_workers.ray, "kill", lambda worker: None)
    schedule = Schedule(RoundSpec("sync", 2, 2, 8, 2, 2), ["0", "1", "2", "3"], seed=1)
    for _ in range(2):
        machine = schedule.begin()
        manager.run_round(machine, lambda prompt, draw: f"{prompt}.{draw}", lambda row: {})
        assert len(schedule.end(machine).trained) == 2
        assert manager.restarts == 1
