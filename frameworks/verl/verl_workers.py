"""The parts of the plug-in for verl that decode: verl's agent loops, one sample at a time, under a round's limits.

`PlannedManager` drives a round in the trainer's process; `PlannedWorker` runs verl's agent loop for a sample, which
scores it and puts its data in verl's queue; `CutoffClient` asks verl's servers for it, by `max_tokens` of a request.

Invariants:
- when `run_round` returns or raises, no request of a worker that lives is under way, and nothing more of the round
  comes into the queue;
- a sample that a short round cuts is neither scored nor stored;
- where a server or a worker dies, samples that it decoded are drawn again; a worker is started anew, and verl's load
  balancer no longer asks the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from ...rounds.machines.events import Issue, SampleKey
from ...rounds.machines.round import Round
from ..drive_round import DecodedSample, EngineGone, drive_round

logger = logging.getLogger(__name__)

MOST_RESTARTS = 8
"""Of workers, in the rounds of a step; after that something kills them, and the round's prompts fail."""

MOST_STOPPED = 65536
"""Names of samples that a worker keeps to refuse them, should their start come late."""


@dataclass(slots=True)
class SampleLimits:
    """Where a sample's requests end, and what became of it; of one sample, in the worker that runs it.

    Attributes:
        max_tokens: response tokens in all; `cutoff_tokens`: where a first request ends, if it is to be told of.
        ends: token ids that end a response.
        drops: whether a sample that `max_tokens` ends is of no use.
        server: id of the server that was asked last; `request`: what it will answer.
        stored: the scoring and storing of the sample, once it has begun.
    """

    max_tokens: int
    cutoff_tokens: int | None
    ends: frozenset[int]
    drops: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: int = 0
    truncated: bool = False
    reward: float | None = None
    server: str = ""
    request: Any = None
    stored: asyncio.Future[None] | None = None


_LIMITS: ContextVar[SampleLimits | None] = ContextVar("limits", default=None)


# -- in a worker -------------------------------------------------------------------------------------------------------


class _Asked:
    """A server's handle that notes what it is asked for, so that the request can be aborted."""

    def __init__(self, server: Any, limits: SampleLimits) -> None:
        self.generate, self._server, self._limits = self, server, limits

    def remote(self, **request: Any) -> Any:
        self._limits.request = self._server.generate.remote(**request)
        return self._limits.request


class CutoffClient(LLMServerClient):  # type: ignore[misc]
    """verl's client, with a limit of tokens by sample; requests without one, as in validation, go as they are."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        """The whole response, in one request or in two. Raises EngineGone if the server died."""
        limits = _LIMITS.get()
        if limits is None:
            return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs)
        prompt_ids, whole = list(prompt_ids), None
        for end in (limits.cutoff_tokens, limits.max_tokens):
            if end is None:
                continue
            before: list[int] = list(whole.token_ids) if whole else []
            asked = {**sampling_params, "max_tokens": end - len(before)}
            part = await self._request(limits, request_id, prompt_ids + before, asked, kwargs)
            whole = part if whole is None else _joined(whole, part)
            limits.tokens = len(whole.token_ids)
            # verl's servers do not say by which of stop and length a response ended.
            limits.truncated = limits.tokens >= end and whole.token_ids[-1] not in limits.ends
            if not limits.truncated:
                break
            if end != limits.max_tokens:
                limits.reached.set()
        return whole

    async def _request(
        self, limits: SampleLimits, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], kwargs: Any
    ) -> Any:
        limits.request = None
        try:
            output = await super().generate(
                request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
            )
        except asyncio.CancelledError:
            if limits.request is not None:
                ray.cancel(limits.request)
                with suppress(Exception, asyncio.CancelledError):
                    await limits.request
            raise
        except Exception as error:
            if not _is_dead(error) and "EngineDead" not in type(error).__name__:
                raise
            logger.warning("rlplan: server %s is gone (%s), and is asked no more", limits.server, type(error).__name__)
            await self._load_balancer.remove_servers.remote([limits.server])
            raise EngineGone(f"server {limits.server} died") from error
        if output.stop_reason == "aborted":
            raise EngineGone(f"server {limits.server} aborted the request")
        if output.stop_reason not in (None, "completed"):  # vLLM's finish reason, which is neither stop nor length
            raise RuntimeError(f"server {limits.server} ended the response with {output.stop_reason!r}")
        return output

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        limits = _LIMITS.get()
        if limits is None:
            return await super()._acquire_server(request_id, **extra)  # type: ignore[no-any-return]
        asking = asyncio.ensure_future(super()._acquire_server(request_id, **extra))
        try:
            limits.server, server = await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(Exception):
                self._release_server((await asking)[0], request_id=request_id)
            raise
        return limits.server, _Asked(server, limits)


def _joined(first: Any, second: Any) -> Any:
    """The response of two requests, the second of which went on from the first one's tokens."""
    new = len(second.token_ids)
    if second.log_probs is not None:
        second.log_probs = [*(first.log_probs or ()), *second.log_probs]
    if second.routed_experts is not None and first.routed_experts is not None and new:
        second.routed_experts = np.concatenate([first.routed_experts, second.routed_experts[-new:]])
    if second.num_preempted is not None:
        second.num_preempted += first.num_preempted or 0
    second.token_ids = [*first.token_ids, *second.token_ids]
    second.extra_fields["num_cached_tokens"] = first.extra_fields.get("num_cached_tokens")
    return second


def _is_dead(error: BaseException) -> bool:
    """Whether the actor that was called died; not one that it called itself."""
    return isinstance(error, RayActorError) and not isinstance(error, RayTaskError)


class PlannedWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__):  # type: ignore[misc]
    """verl's worker of agent loops, which also runs single samples, and stops them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._samples: dict[str, tuple[asyncio.Task[None], SampleLimits]] = {}
        self._stopped: set[str] = set()  # samples whose stop came before their start
        rollout, ends = self.config.actor_rollout_ref.rollout, [self.tokenizer.eos_token_id]
        of_model = getattr(self.model_config.generation_config, "eos_token_id", None)
        ends += of_model if isinstance(of_model, list) else [of_model]
        self._ends = frozenset(end for end in ends if end is not None and not rollout.get("ignore_eos", False))
        self._sampling = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "repetition_penalty": 1.0,
            "logprobs": rollout.calculate_log_probs,
        }

    async def decode(
        self, name: str, row: dict[str, Any], sample: int, max_tokens: int, cutoff_tokens: int | None, drops: bool
    ) -> tuple[int, bool, float | None]:
        """Begin a sample of a row; returns its tokens, whether a limit ended it, and its reward, once it has ended or
        come to its cutoff. Raises EngineGone, or what the agent loop or the reward raised."""
        if name in self._stopped:
            self._stopped.discard(name)
            raise EngineGone("the sample is no longer wanted")
        limits = SampleLimits(max_tokens, cutoff_tokens, self._ends, drops)
        task = asyncio.ensure_future(self._run_sample(row, sample, limits))
        self._samples[name] = (task, limits)
        reached = asyncio.ensure_future(limits.reached.wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if not task.done():
            return limits.tokens, True, None
        return await self.resume(name)

    async def resume(self, name: str) -> tuple[int, bool, float | None]:
        """The same, once the sample has ended. Raises EngineGone if another worker, which died, had begun it."""
        if name not in self._samples:
            raise EngineGone("the worker that had begun the sample died")
        task, limits = self._samples[name]
        await asyncio.wait({task})
        self._samples.pop(name, None)
        task.result()
        return limits.tokens, limits.truncated, limits.reward

    async def stop(self, name: str) -> None:
        """Abort a sample; returns once its request has ended and none of its data are on their way."""
        if name not in self._samples:
            if len(self._stopped) > MOST_STOPPED:
                self._stopped.clear()  # they had ended before
            self._stopped.add(name)
            return
        task, limits = self._samples.pop(name)
        task.cancel()
        await asyncio.wait({task})
        if limits.stored is not None:
            await asyncio.wait({limits.stored})

    async def _run_sample(self, row: dict[str, Any], sample: int, limits: SampleLimits) -> None:
        _LIMITS.set(limits)  # of this task alone
        agent = {"agent_name": self.config.actor_rollout_ref.rollout.agent.default_agent_loop}
        step = {"step": row["global_steps"], "sample_index": row["index"], "rollout_n": sample, "validate": False}
        await self._run_agent_loop(dict(self._sampling), step, trace=False, session_id=sample, **agent | row)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        limits, store = _LIMITS.get(), super()._agent_loop_postprocess
        if limits is None:
            await store(output, validate, **kwargs)
        elif not (limits.truncated and limits.drops):
            # What is half in the queue could not be removed from it.
            limits.stored = asyncio.ensure_future(store(output, validate, **kwargs))
            await asyncio.shield(limits.stored)
            limits.reward = (output[-1] if isinstance(output, list) else output).reward_score


# -- in the trainer ----------------------------------------------------------------------------------------------------


class PlannedManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """verl's manager of those workers; `generate_sequences`, for validation, is verl's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers: list[Any] = []
        self.restarts = 0
        """Workers that were started anew in the rounds of the present step; the trainer sets it back."""

    async def _init_agent_loop_workers(self) -> None:
        self.agent_loop_workers = [self._start_worker(place) for place in range(self.rollout_config.agent.num_workers)]

    def _start_worker(self, place: int) -> Any:
        every = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [node["NodeID"] for node in every if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[place % len(nodes)], soft=True)
        options = {
            "name": f"rlplan_worker_{place}_{uuid4().hex[:8]}",
            "scheduling_strategy": near,
            "max_concurrency": 65536,  # a call for each sample under way; a stop must not wait behind them
        }
        return (
            ray.remote(PlannedWorker)
            .options(**options)
            .remote(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)
        )

    def run_round(
        self, machine: Round, uid: Callable[[str, int], str], row: Callable[[str], dict[str, Any]]
    ) -> dict[SampleKey, DecodedSample[float | None]]:
        """Run a round to its end; `uid` of a prompt's draw, `row` of a prompt: the fields of verl's data set.

        A sample's reward is None if a reward model judges it after the round.
        """
        return asyncio.run(self._run(machine, uid, row))

    async def _run(
        self, machine: Round, uid: Callable[[str, int], str], row: Callable[[str], dict[str, Any]]
    ) -> dict[SampleKey, DecodedSample[float | None]]:
        async def decode(
            issue: Issue, before: DecodedSample[float | None] | None, max_tokens: int
        ) -> DecodedSample[float | None]:
            place = issue.key.draw % len(self.agent_loop_workers)
            worker, draw = self.agent_loop_workers[place], uid(issue.prompt, issue.key.draw)
            name = f"{draw}_{issue.key.sample}"
            try:
                if before is None:
                    cutoff, drops = issue.cutoff_tokens, issue.max_tokens < machine.max_tokens
                    fields = row(issue.prompt) | {"uid": draw}
                    answer = worker.decode.remote(name, fields, issue.key.sample, issue.max_tokens, cutoff, drops)
                else:
                    answer = worker.resume.remote(name)
                tokens, truncated, reward = await answer
            except asyncio.CancelledError:
                with suppress(Exception):  # a worker that is dead has nothing to stop
                    await worker.stop.remote(name)
                raise
            except Exception as error:
                if not _is_dead(error) or getattr(error, "actor_init_failed", False):
                    raise
                self._restart(place, worker)
                raise EngineGone(f"worker {place} died") from error
            return DecodedSample(reward, tokens, truncated)

        async def score(reward: float | None) -> float:
            return 0.0 if reward is None else reward

        return await drive_round(machine, decode, score)

    def _restart(self, place: int, worker: Any) -> None:
        """Start a worker in the place of one that died, once."""
        if self.agent_loop_workers[place] is not worker:
            return
        self.restarts += 1
        if self.restarts > MOST_RESTARTS:
            raise RuntimeError(f"verl's agent loop workers died {self.restarts} times in one step; see their logs")
        logger.warning("rlplan: agent loop worker %d died; another takes its place", place)
        with suppress(Exception):
            ray.kill(worker)
        self.agent_loop_workers[place] = self._start_worker(place)
