"""verl's own server of rollouts, with a vLLM engine on the CPU.

verl starts its servers in the bundles of GPUs that its training workers hold; here is none, so an actor of ours holds
the server, whose code is verl's. What it needs on a CPU: no sleep mode, a value in CUDA_VISIBLE_DEVICES (else vLLM
takes Triton to have a driver), and the name `vllm` for the installed distribution (`write_folder`).
"""

from __future__ import annotations

from typing import Any

import ray

ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_LOGGING_LEVEL": "ERROR"}


@ray.remote
class CpuVllmServer:
    """A vLLMHttpServer of verl's."""

    def __init__(self, config: Any, model_config: Any, rank: int) -> None:
        from verl.workers.rollout.replica import RolloutMode
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

        self._server = vLLMHttpServer(
            config=config,
            model_config=model_config,
            rollout_mode=RolloutMode.STANDALONE,
            workers=[],
            replica_rank=rank,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices="0",
        )

    async def launch(self) -> None:
        await self._server.launch_server()

    async def generate(self, **request: Any) -> Any:
        return await self._server.generate(**request)

    async def unfinished(self) -> int:
        """Requests that are under way."""
        return len(self._server.engine.output_processor.request_states)


async def start_vllm(config: Any, model_config: Any, rank: int) -> Any:
    """A server whose engine is up."""
    server = CpuVllmServer.options(num_cpus=0, max_concurrency=4096, runtime_env={"env_vars": ENV}).remote(
        config, model_config, rank
    )
    await server.launch.remote()
    return server
