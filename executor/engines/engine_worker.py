"""What runs inside each vLLM worker process: receiving weights, and telling that it lives.

vLLM mixes this class into its worker (`worker_extension_cls`), so `self` is a vLLM worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ..weights.checksum import VERSION_KEY, tensor_checksum


class WeightReceiver:
    """Methods that `RolloutEngine` calls through vLLM's `collective_rpc`."""

    model_runner: Any

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

            # reload_weights, not load_weights: CPU linears repack their weights, which only the former unpacks first.
            self.model_runner.reload_weights(weights_iterator=tensors())
        self._renew_tied_head()
        return file_version, sums

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
