"""What runs inside each vLLM worker process: receiving weights, from a file or a transfer, drawing samples by their
seeds, and telling that it lives.

vLLM mixes `EngineRank` into its worker (`worker_extension_cls`), so `self` is a vLLM worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ..drafts.draft_worker import DraftRank
from ..weights.checksum import VERSION_KEY, tensor_checksum
from ..weights.slots.device_slots import device_key
from ..weights.transfer.bucket_reader import ReaderPlace, ReaderRank
from ..weights.transfer.session import RankAnswer
from .seeded_sampling import SeededSampling


class WeightReceiver:
    """Methods that `RolloutEngine` calls through vLLM's `collective_rpc`."""

    model_runner: Any
    device: Any
    _transfers: ReaderRank | None = None

    def receive_weights(self, path: str, version: str, checksums: bool) -> tuple[str, dict[str, str]]:
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

    def open_transfer(self, session: str) -> str | None:
        """Join a session of transfers (`Session.for_reader`); returns why it could not."""
        if self._transfers is None:
            at = ReaderPlace(device_key(self.device), self.device)
            self._transfers = ReaderRank(self._load, self._reset, at)
        return self._transfers.open(session)

    def device_uuid(self) -> str:
        """UUID of this rank's GPU; "" on a CPU."""
        return device_key(self.device)

    def receive_buckets(self, name: str, turn: int, version: str, checksums: bool) -> RankAnswer:
        """Load the weights of transfer `turn` of a session, unless they are of another version than `version`."""
        if self._transfers is None:
            return RankAnswer(version, {}, f"an engine is in no session {name}")
        return self._transfers.receive(name, turn, version, tensor_checksum if checksums else None)

    def leave_transfer(self, name: str) -> None:
        """Leave a session of transfers."""
        if self._transfers is not None:
            self._transfers.leave(name)

    def _load(self, tensors: Iterator[tuple[str, Any]]) -> None:
        """Load tensors with the checkpoint's names."""
        # reload_weights, not load_weights: CPU linears repack their weights, which only the former unpacks first.
        self.model_runner.reload_weights(weights_iterator=tensors)
        self._renew_tied_head()

    def _reset(self) -> None:
        """After a load that broke off: end it with the tensors that came, so that another one begins anew.

        vLLM keeps what it has received of a layer until the layer is whole, also into the next load.
        """
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

        end: Any = finalize_layerwise_reload
        end(self.model_runner.get_model(), self.model_runner.model_config)

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

    def draw_by_place(self) -> str | None:
        """Have this rank draw samples by their seeds and places (seeded_sampling.py); returns why it cannot."""
        try:
            self.seeded = SeededSampling(self.model_runner)
        except Exception as error:  # noqa: BLE001 - whatever this vLLM or torch lacks, vLLM's own generators do
            return f"{type(error).__name__}: {error}"
        return None

    def pulse(self) -> bool:
        """A sign of life; it comes between two engine steps."""
        return True


class EngineRank(WeightReceiver, DraftRank):
    """All that runs in a rank beside vLLM's own."""
