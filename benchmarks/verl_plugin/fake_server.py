"""A server that speaks the protocol of verl's LLM servers and has no engine, and the lengths that it draws.

`generate` takes and returns what verl's vLLM server does (`max_tokens` of a request, no word on why a response ended),
its waits are in proportion to the tokens, and a request that is cancelled ends. A response's length has a distribution
that its row alone gives; a request that goes on from an earlier one's tokens draws from the rest of it, so the length
of a sample has the same distribution in one request as in two.
"""

from __future__ import annotations

import asyncio
import math
import random
from statistics import NormalDist
from typing import Any

import ray
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import TokenOutput

SIGMA = 0.9
WORD, END = 12, 11
"""The token of which responses consist, and the one that ends them. Tokens 0-9 are the digits of a row, 10 ends it."""

TOKEN_S = 0.0004


def spread(row: int) -> float:
    """The logarithm of the median length of a row's responses, in tokens."""
    return math.log(14) + 0.6 * math.sin(row * 12.9898)


def expected_tokens(row: int, cap: int) -> float:
    """The mean length of a row's responses, which are cut at `cap`."""
    normal, mu = NormalDist(), spread(row)
    # A length is 1 + floor(lognormal), so it is at least k + 1 with the probability that the lognormal is k or more.
    return 1.0 + sum(1.0 - normal.cdf((math.log(k) - mu) / SIGMA) for k in range(1, cap))


@ray.remote
class FakeServer:
    """Draws lengths, and counts its open requests."""

    def __init__(self, seed: int) -> None:
        self._random, self.open = random.Random(seed), 0

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **ignored: Any
    ) -> TokenOutput:
        done = len(prompt_ids) - 1 - max(place for place, token in enumerate(prompt_ids) if token == 10)
        row = int("".join(map(str, prompt_ids[: len(prompt_ids) - 1 - done])))
        length = 0
        while length <= done:
            length = 1 + int(math.exp(self._random.gauss(spread(row), SIGMA)))
        tokens = min(length - done, sampling_params["max_tokens"])
        self.open += 1
        try:
            await asyncio.sleep(tokens * TOKEN_S)
        finally:
            self.open -= 1
        ids = [WORD] * tokens
        if done + tokens == length:
            ids[-1] = END
        return TokenOutput(
            token_ids=ids, log_probs=[-1.0] * tokens, stop_reason="completed", extra_fields={"global_steps": 0}
        )

    async def unfinished(self) -> int:
        """Requests that are under way."""
        return self.open


class Replica:
    """A replica of one server, as verl's manager starts and registers it."""

    server = "fake"

    def __init__(self, replica_rank: int, config: Any, model_config: Any, **ignored: Any) -> None:
        self.replica_rank, self.config, self.model_config = replica_rank, config, model_config

    async def init_standalone(self) -> None:
        self._server_address = f"cpu:{self.replica_rank}"
        if self.server == "vllm":
            from .vllm_server import start_vllm

            self._server_handle = await start_vllm(self.config, self.model_config, self.replica_rank)
        else:
            self._server_handle = FakeServer.options(num_cpus=0, max_concurrency=4096).remote(self.replica_rank)


class CpuServerManager(LLMServerManager):  # type: ignore[misc]
    """verl's manager of servers, with its real load balancer; `kill` ends a server, another takes its place."""

    rollout_replica_class = Replica

    async def _kill(self, place: int) -> None:
        # Taken out first: an engine takes a minute to come up, and none is struck while it is the only one.
        ray.kill(self.server_handles.pop(place))
        replica = Replica(1000 + random.randrange(10**6), self.rollout_config, self.model_config)
        await replica.init_standalone()
        self.server_handles.append(replica._server_handle)
        await self.global_load_balancer.add_servers.remote({replica._server_address: replica._server_handle})

    def kill(self, place: int) -> bool:
        """Returns False if it would be the last one."""
        if len(self.server_handles) < 2:
            return False
        asyncio.run(self._kill(place))
        return True

    def unfinished(self) -> int:
        """Requests that are under way on the servers that live."""
        return sum(ray.get([server.unfinished.remote() for server in self.server_handles]))
