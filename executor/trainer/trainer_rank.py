"""One rank of the trainer: groups of scored samples in, one optimizer step, new weights out.

Invariants:
- The update is a function of the set of samples and of the weights: samples are sorted first, so completion order
  changes no bit (on CPU; CUDA kernels may add in any order). Of what is streamed, the order in which groups came
  changes the rounding of the sums, and nothing else.
- Gradients do not depend on the micro-batch split, the number of ranks, or on what was streamed (gradient_sum.py),
  beyond rounding.
- What is not finite, or of other log-probs than the engine's, is seen before the optimizer steps: weights and optimizer
  state are then left as they were, on all ranks alike. Weights that are not finite are never saved.
- `version` counts updates; 0 are the weights as loaded.
- Every method except `parameters`, `close` and `transfer` is collective: all ranks call it, with the same arguments.
  `write_staged` may run in a thread of its own beside the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from ..processes.host import take_resident_peak
from ..weights.transfer import VERSION_KEY, tensor_checksum
from .gradient_sum import GradientSum
from .optimizer import ShardedAdamW, clip, total_norm
from .policy.adapters import Adapters, base_parameters, trained_parameters
from .policy.load_policy import load_policy
from .policy.local_tensors import ParkedParameters, ReferenceWeights, whole
from .policy.rank_mesh import RankMesh, join
from .rank_transfers import RankTransfers
from .saved_state import Staging, State, load_state, trainer_state
from .step_checks import refusal
from .train_samples import Groups, ReplicaShare
from .trainer_config import TrainerConfig, UpdateSettings


class Trainer:
    """Policy, optimizer and version of one rank. `step` trains; `export_weights` hands the result to the engines.

    Args:
        config: what all ranks share.
        rank: number of this rank.
        init_method: where ranks meet (`tcp://host:port/secret`, `file://path`); needed if and only if there are
            several.
    """

    def __init__(self, config: TrainerConfig, rank: int = 0, init_method: str | None = None) -> None:
        assert (init_method is not None) == (config.ranks > 1), "init_method goes with several ranks"
        self._config = config
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.algorithm.seed)
        self._rank, self._world_size = rank, config.ranks
        self._device = torch.device(config.device)
        if config.device == "cuda":
            # All ranks of a node see all of its GPUs.
            self._device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self._device)
        # One rank needs a process group for FSDP's mixed precision only.
        joins = config.ranks > 1 or config.dtype == "bfloat16"
        sizes = config.dp, config.sp, config.tp
        self._mesh = RankMesh()
        if joins:
            self._mesh = join(rank, *sizes, self._device, init_method, config.state_copies)
        self._model: Any = load_policy(
            config.model_path, config.dtype, self._device, self._mesh, config.head_dtype, config.lora
        )
        self._parameters = sum(p.numel() for p in self._model.parameters())
        self._adapters: Adapters | None = None
        if config.lora is not None:
            self._adapters = Adapters(self._model, config.lora, self._device, config.algorithm.seed)
        self._trained = list(trained_parameters(self._model).values())
        as_reference = None
        if config.algorithm.kl is not None and self._adapters is not None:
            as_reference = self._adapters.off  # the model that training began with, which needs no copy
        elif config.algorithm.kl is not None:
            # As loaded from the model: what a checkpoint brings later is the policy's alone.
            computed = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
            on_device = config.update.reference != "host"
            as_reference = ReferenceWeights(self._model, self._device, computed, on_device).active
        self._gradients = GradientSum(self._model, config, self._mesh, self._device, as_reference)
        self._optimizer = ShardedAdamW(self._model, config.algorithm, self._device, config.update.offload)
        self._parked = ParkedParameters(self._model, self._device)
        self._staging = Staging(rank, self._device)
        self._transfers = RankTransfers(self._model, rank, config.dtype, self._device, self._adapters)
        self.version = 0

    def stream(
        self,
        groups: Groups | ReplicaShare,
        update: UpdateSettings | None = None,
        replicas: Collection[int] | None = None,
        first: bool = False,
    ) -> float:
        """Add the gradients of complete groups of the step that is coming, while its other groups are still decoded.

        `first`: the step begins with these; what an abandoned step had added is dropped. `replicas`: those that share
        the groups; None: all. `groups` as in `step`. Returns seconds. No weight changes before `step`.
        """
        started = time.perf_counter()
        update = update or self._config.update
        if first:
            self._gradients.drop()
        if update.offload:
            self._optimizer.place(True)  # the backward pass needs the memory
        self._gradients.add(groups, update, replicas)
        return time.perf_counter() - started

    def step(
        self,
        groups: Groups | ReplicaShare,
        update: UpdateSettings | None = None,
        streamed: bool = False,
    ) -> dict[str, float]:
        """One optimizer step on complete groups, in any order: every rank gets all of them and takes its share, or gets
        the share of its replica (`samples.shares`).

        `update` stands in for the trainer's own settings in this step. `streamed`: the step's other groups were given
        to `stream`; then `groups` are the rest, perhaps none.

        A step that `refusal` (step_checks.py) does not let pass changes nothing; `skipped` is 1 then.

        Returns metrics of the whole step, equal on all ranks: `loss`; `grad_norm` (before clipping), `grad_scale` (1:
        not clipped; absent if the step was skipped); `skipped` (0 or 1);
        `reward_mean`, `tokens` (prompts and responses), `response_tokens`, `samples`, `micro_batches` (per rank),
        `compiled` (0 or 1: whether layers ran compiled), `seconds`; of the difference of log-probs between engine and
        trainer over all response tokens, before the update: `logprob_max_abs_diff`, `logprob_mean_abs_diff`,
        `logprob_p99_abs_diff` and `logprob_beyond_share` (of tokens beyond the limits' bound), nats;
        `ratio_clipped_share` of tokens in the loss; with importance sampling `importance_ratio_mean` (before
        truncation) and `importance_truncated_share` or `importance_masked_share` of tokens in the loss; `entropy` in
        nats, mean over response tokens; with a KL to a reference `kl_reference`, mean over response tokens of its
        estimate, nats, `kl_coef`, `reference_s`, seconds of the reference's forwards, and, where the loss has it,
        `kl_loss`, aggregated as the loss is and without its coefficient; `parameter_norm` after the update;
        `learning_rate` of the update, absent if it was skipped.
        """
        started = time.perf_counter()
        update = update or self._config.update
        if update.offload:
            self._optimizer.place(True)  # the backward pass needs the memory
        if not streamed:
            self._gradients.drop()
        if groups.samples if isinstance(groups, ReplicaShare) else groups:
            self._gradients.add(groups, update)
        metrics = self._gradients.finish()
        gradients = [p.grad for p in self._trained if p.grad is not None]
        grad_norm = total_norm(gradients, self._world_size)
        metrics["grad_norm"] = grad_norm.item()
        skipped = self._refused(metrics)
        if not skipped:
            limit = self._config.algorithm.max_grad_norm * update.norm_share
            metrics["grad_scale"] = clip(gradients, grad_norm, limit)
            self._optimizer.place(update.offload)
            metrics["learning_rate"] = self._optimizer.step(update.norm_share)
            self.version += 1
        del gradients
        self._gradients.drop()  # engines may want their memory now
        metrics |= {
            "skipped": float(skipped),
            "parameter_norm": total_norm(self._trained, self._world_size).item(),
        }
        metrics["seconds"] = time.perf_counter() - started
        return metrics

    def time_update(self, groups: Groups | ReplicaShare, update: UpdateSettings | None = None) -> float:
        """Seconds of the gradients of a step that is not taken, and which are dropped: weights, moments, version and
        random state stay what they are (collective)."""
        update = update or self._config.update
        if update.offload:
            self._optimizer.place(True)  # the backward pass needs the memory
        self._gradients.drop()
        started = time.perf_counter()
        self._gradients.add(groups, update)
        self._gradients.finish()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        self._gradients.drop()
        return seconds

    def gradients(self, groups: Groups, update: UpdateSettings | None = None) -> dict[str, torch.Tensor]:
        """Whole gradients, by parameter name, before clipping, of a step that is not taken (collective)."""
        self._gradients.drop()
        self._gradients.add(groups, update or self._config.update)
        return self.summed_gradients()

    def summed_gradients(self) -> dict[str, torch.Tensor]:
        """Whole gradients, by parameter name, before clipping, of all added groups; drops them (collective)."""
        self._gradients.finish()
        gradients = {
            name: whole(parameter.grad).clone()
            for name, parameter in trained_parameters(self._model).items()
            if parameter.grad is not None
        }
        self._gradients.drop()
        return gradients

    def _refused(self, metrics: dict[str, float]) -> bool:
        """Whether the step is refused (collective): rank 0 decides for all ranks, as the run sees rank 0's metrics."""
        refused = torch.tensor(float(refusal(metrics, self._config.logprob_limits) is not None), device=self._device)
        if self._world_size > 1:
            dist.broadcast(refused, 0)
        return bool(refused.item())

    def export_weights(self, path: str | Path, version: str | None = None, checksums: bool = True) -> dict[str, str]:
        """Write all weights to one safetensors file, in the job's dtype and with the Hugging Face checkpoint's names.

        The file appears whole or not at all, and says that it holds `version` (None: the number of updates), which who
        reads it compares with what it was told. Tied weights are written once. Returns checksum by tensor name, if
        asked for, on rank 0, which alone writes; {} on the others, which do not wait: writing takes longer than a
        collective may (rank_mesh.COLLECTIVE_DEADLINE).
        """
        target, dtype = Path(path), getattr(torch, self._config.dtype)
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in base_parameters(self._model).items():
            tensor = whole(parameter.detach())
            if self._rank == 0:
                tensor = tensor if self._adapters is None else self._adapters.merged(name, tensor)
                tensors[name] = tensor.to("cpu", dtype)
        if self._rank == 0:
            tensors = {k: v.contiguous() for k, v in sorted(revert_weight_conversion(self._model, tensors).items())}
            partial = target.with_name(f".{target.name}.partial")
            save_file(tensors, partial, metadata={"format": "pt", VERSION_KEY: version or str(self.version)})
            partial.replace(target)
        return {name: tensor_checksum(tensor) for name, tensor in tensors.items() if checksums}

    def transfer(self, method: str, *arguments: Any) -> Any:
        """Call a method of this rank's `RankTransfers`: its part in sending weights to engines in pieces."""
        return getattr(self._transfers, method)(*arguments)

    def place(self, parameters: bool, moments: bool) -> int:
        """Have parameters, and the optimizer's moments, on the device or else in host memory; returns the bytes of this
        rank that moved. On a CPU the host is the device, and nothing moves.

        `step` and `export_weights` need the parameters on the device; `stage` and `load` do not.
        """
        if self._device.type == "cpu":
            return 0
        before_bytes = self._optimizer.host_bytes
        self._optimizer.place(not moments)
        moved = self._parked.place(parameters) + abs(self._optimizer.host_bytes - before_bytes)
        # Also where nothing moves: torch keeps the memory of an update's activations, and engines that wake need it.
        torch.cuda.empty_cache()
        return moved

    def peak_bytes(self) -> int:
        """The most memory that this rank held since this was asked last: of its GPU (what torch has reserved of it), or
        resident in its host."""
        if self._device.type == "cpu":
            return take_resident_peak()
        peak = int(torch.cuda.max_memory_reserved())
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak

    def stage(self) -> int:
        """Copy model, optimizer, version and random state to host memory for `write_staged`; returns this rank's bytes.

        Raises RuntimeError on all ranks if a weight or a moment of any is not finite or host memory is short.
        """
        return self._staging.stage(self._state())

    def write_staged(self, folder: str | Path) -> None:
        """Write what was staged last to `folder`, atomically; another thread may train meanwhile.

        Raises FileExistsError, and OSError on all ranks if one of them cannot write.
        """
        self._staging.write(Path(folder))

    def save(self, folder: str | Path) -> None:
        """`stage` and `write_staged`, one after the other."""
        self.stage()
        self.write_staged(folder)

    def load(self, folder: str | Path) -> None:
        """Take over what `save` wrote, perhaps with another number or layout of ranks. Raises FileNotFoundError."""
        state = self._state()
        load_state(Path(folder), state, self._staging.group)
        self.version = self._optimizer.updates = int(state["counters"]["version"])
        torch.set_rng_state(state["counters"]["rng"])

    def _state(self) -> State:
        scale = None if self._adapters is None else self._adapters.lora.scale
        return trainer_state(self._model, self._optimizer, self.version, scale)

    def without_adapters(self) -> contextlib.AbstractContextManager[None]:
        """A block in which the model computes as the one that training began with, which adapters leave as it was. Of a
        trainer without adapters it changes nothing."""
        return contextlib.nullcontext() if self._adapters is None else self._adapters.off()

    def parameters(self) -> int:
        """Number of parameters of the policy; returns only once the trainer is ready."""
        return self._parameters

    def trained_parameters(self) -> int:
        """Number of parameters that are trained: of the policy, or of its adapters."""
        return sum(parameter.numel() for parameter in self._trained)

    @property
    def pairs(self) -> float:
        """Costs of a pair of tokens of this policy (`packing.pair_share`), for who makes shares."""
        return self._gradients.pairs

    def close(self) -> None:
        """Leave the process group; nothing may be called after it."""
        if dist.is_initialized():
            dist.destroy_process_group()
