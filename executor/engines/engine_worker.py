"""What runs inside each vLLM worker process: receiving weights, from a file or a transfer, drawing samples by their
seeds, proposing drafts, and telling that it lives.

vLLM mixes `EngineRank` into its worker (`worker_extension_cls`), so `self` is a vLLM worker.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

from ..drafts.proposer import HistoryProposer
from ..weights.bucket_memory import BucketMemory, device_key
from ..weights.transfer import (
    DOWN_SUFFIX,
    UP_SUFFIX,
    VERSION_KEY,
    BucketReader,
    Received,
    adapter_delta,
    tensor_checksum,
)
from .runner_patches import SeededSampling, patch_for_drafts


class Reload:
    """vLLM's reload of a model in parts, by whose names and shapes are those of the checkpoint.

    vLLM loads a layer when it has all of it, and keeps what came of it until then; both ends of a reload are its own
    (model_executor/model_loader/reload, the same in 0.24 and 0.32).
    """

    def __init__(self, runner: Any) -> None:
        from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

        self._runner, self._model = runner, runner.get_model()
        initialize_layerwise_reload(self._model)

    def load(self, tensors: Iterable[tuple[str, Any]], memory: BucketMemory) -> None:
        """Load tensors that lie in `memory`, of which nothing is used any more afterwards."""
        import torch
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        self._model.load_weights(tensors)
        for layer in self._model.modules():
            for _, bound in get_layerwise_info(layer).loaded_weights:  # of a layer that continues in the next bucket
                for name, value in bound.arguments.items():
                    if isinstance(value, torch.Tensor) and memory.holds(value):
                        bound.arguments[name] = value.clone()

    def finish(self) -> None:
        """End the reload; one that broke off ends with the tensors that came, so that another one begins anew."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

        end: Any = finalize_layerwise_reload
        end(self._model, self._runner.model_config)


class AdapterReload:
    """A reload of a model with new adapters, which come alone: the weights of the model's files with scale B A added.

    All weights are read anew from the files, which the node's page cache has once for all of its engines: so nothing
    drifts by being added and subtracted again, whatever came before is of no consequence, weights that slept included,
    and decoding takes what it takes without adapters, where vLLM's own LoRA adds kernels to each step.
    """

    def __init__(self, worker: Any, scale: float) -> None:
        self._worker, self._scale = worker, scale
        self._held: dict[str, Any] = {}

    def load(self, tensors: Iterable[tuple[str, Any]], memory: BucketMemory) -> None:
        """Take adapters that lie in `memory`, of which nothing is used any more afterwards."""
        self._held |= {name: tensor.to(self._worker.device, copy=True) for name, tensor in tensors}

    def merged(self) -> Iterator[tuple[str, Any]]:
        """All weights with the adapters that came. Raises RuntimeError if one belongs to none of them."""
        import torch
        from vllm.model_executor.model_loader import get_model_loader

        config = self._worker.vllm_config
        kept = torch.bfloat16 if config.model_config.dtype == torch.bfloat16 else torch.float32  # as trainers keep them
        loader: Any = get_model_loader(config.load_config)
        for name, weight in loader.get_all_weights(config.model_config, self._worker.model_runner.get_model()):
            stem = name.removesuffix(".weight")
            down, up = self._held.pop(stem + DOWN_SUFFIX, None), self._held.pop(stem + UP_SUFFIX, None)
            if down is not None and up is not None:
                weight = weight.to(down.device, kept).float() + adapter_delta(down, up, self._scale)
            yield name, weight
        if self._held:
            raise RuntimeError(f"the model's files have no weight for the adapter's {min(self._held)}")


class WeightReceiver:
    """Methods that `RolloutEngine` calls through vLLM's `collective_rpc`."""

    model_runner: Any
    device: Any
    rank: int
    _reader: BucketReader | None = None
    _reload: Reload | AdapterReload | None = None

    def receive_weights(self, path: str, version: str, checksums: bool) -> Received:
        """Load a safetensors file with Hugging Face names, unless it names another version than `version`.

        Returns the version that the file names, and tensor checksums as received ({} unless `checksums`). A file that
        names no version, which no trainer wrote, counts as `version`.
        """
        from safetensors import safe_open

        sums: dict[str, str] = {}
        with safe_open(path, framework="pt") as file:  # once: the file at this path may be replaced any time
            file_version = (file.metadata() or {}).get(VERSION_KEY, version)
            if file_version != version:
                return file_version, sums

            def tensors() -> Iterator[tuple[str, Any]]:
                for name in sorted(file.keys()):
                    tensor = file.get_tensor(name)
                    if checksums:
                        sums[name] = tensor_checksum(tensor)
                    yield name, tensor

            self._load(tensors())
        return file_version, sums

    def device_uuid(self) -> str:
        """UUID of this rank's GPU; "" on a CPU."""
        return device_key(self.device)

    def begin_weights(self, transfer: str, engine: str) -> str | None:
        """Begin to receive a transfer (`Transfer.text`) in this engine; returns why it could not."""
        self.end_reload()
        self._reader = self._reader or BucketReader(self.rank, self.device)
        broken: str | None = self._reader.begin(transfer, engine).broken
        scale = self._reader.adapter_scale
        self._reload = Reload(self.model_runner) if scale is None else AdapterReload(self, scale)
        return broken

    def load_bucket(self, index: int) -> str | None:
        """Load bucket `index` of the transfer; returns why it could not."""
        assert self._reader is not None and self._reload is not None, "begin_weights() comes first"
        return self._reader.load(index, self._reload.load).broken

    def finish_weights(self) -> Received:
        """End the transfer, all of which is loaded."""
        assert self._reader is not None, "begin_weights() comes first"
        if isinstance(self._reload, AdapterReload):
            self._load(self._reload.merged())
        self.end_reload()
        self._renew_tied_head()
        return self._reader.finish()

    def _load(self, tensors: Iterator[tuple[str, Any]]) -> None:
        """Load tensors with the checkpoint's names."""
        self.end_reload()
        # reload_weights, not load_weights: CPU linears repack their weights, which only the former unpacks first.
        self.model_runner.reload_weights(weights_iterator=tensors)
        self._renew_tied_head()

    def end_reload(self) -> None:
        """End a reload; one that broke off ends with the tensors that came, so that another one begins anew."""
        reload, self._reload = self._reload, None
        if isinstance(reload, Reload):
            reload.finish()

    def _renew_tied_head(self) -> None:
        """Give a tied output head the new embeddings.

        A reload gives a layer new weights only if the file names them. A tied head is in no file, so on a CPU, where
        each layer multiplies with a repacked copy, it would go on with the first weights for ever.
        """
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        embeddings = getattr(getattr(model, "model", None), "embed_tokens", None)
        if head is None or embeddings is None or head is embeddings:
            return
        if getattr(model.config, "tie_word_embeddings", False):
            head.tie_weights(embeddings)
            head.quant_method.process_weights_after_loading(head)

    def live_checksum(self) -> str:
        """Digest of this rank's parameters in the form that its kernels use."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.model_runner.get_model().named_parameters()):
            digest.update(f"{name}:{tensor_checksum(parameter.data)}".encode())
        return digest.hexdigest()[:16]

    def pulse(self) -> bool:
        """A sign of life; it comes between two engine steps."""
        return True


class DraftRank:
    """A rank's methods for seeds and drafts.

    All ranks of an engine verify the drafts that rank 0 proposes, so the others propose none.
    """

    model_runner: Any
    rank: int
    seeded: Any = None
    """What draws samples by their seeds (runner_patches.py); None: vLLM's generators do."""

    def draw_by_place(self) -> str | None:
        """Have this rank draw samples by their seeds and places (runner_patches.py); returns why it cannot."""
        try:
            self.seeded = SeededSampling(self.model_runner)
        except Exception as error:  # noqa: BLE001 - whatever this vLLM or torch lacks, vLLM's own generators do
            return f"{type(error).__name__}: {error}"
        return None

    def attach_drafts(self) -> None:
        """Make ready for drafts. Raises RuntimeError if vLLM did not take our proposer or our sampling."""
        proposer = getattr(self.model_runner, "drafter", None)
        if not isinstance(proposer, HistoryProposer):
            raise RuntimeError(f"vLLM drafts by {type(proposer).__name__}, not by HistoryProposer")
        if self.seeded is None:
            raise RuntimeError("drafts are verified by drawing with seeds, for which this vLLM has no place")
        patch_for_drafts(self.model_runner, self.seeded, proposer.scheduled)
        proposer.attach(self.model_runner)

    def begin_drafts(self, tokens: int, up_to_sequences: int) -> None:
        """Begin a round (proposer.HistoryProposer.begin)."""
        self._proposer.begin(tokens if self.rank == 0 else 0, up_to_sequences)

    def remember(self, histories: list[bytes]) -> None:
        """Take the earlier responses to prompts, each a pickled `PromptHistory`."""
        if self.rank == 0:
            for pickled in histories:
                self._proposer.remember(pickle.loads(pickled))

    def take_drafts(self, wanted: list[str]) -> bytes | None:
        """What drafts gave in the round, a pickled `DraftReport` with the tokens of the requests `wanted`; None of
        other ranks than the first."""
        return pickle.dumps(self._proposer.report(set(wanted))) if self.rank == 0 else None

    @property
    def _proposer(self) -> HistoryProposer:
        proposer: HistoryProposer = self.model_runner.drafter
        return proposer


class EngineRank(WeightReceiver, DraftRank):
    """All that runs in a rank beside vLLM's own."""
