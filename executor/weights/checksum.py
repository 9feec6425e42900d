"""Checksums of tensors and versions of weights files, the same on the trainer's and on the engine's side."""

from __future__ import annotations

import zlib

import torch

VERSION_KEY = "rlplan_version"
"""Key of a weights file's metadata that names its version."""


def tensor_checksum(tensor: torch.Tensor) -> str:
    """CRC-32 of the tensor's dtype, shape and bytes (row-major, in the machine's byte order), as 8 hexadecimal digits.

    It catches a mix-up or a torn transfer, not an attacker.
    """
    data = tensor.detach().cpu().contiguous()
    head = f"{data.dtype}{tuple(data.shape)}".encode()
    # bytes of any dtype, bfloat16 included, which numpy does not have; reshape because a scalar has no view as bytes
    return f"{zlib.crc32(data.reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(head)):08x}"
