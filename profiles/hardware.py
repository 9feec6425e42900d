"""Data sheets of accelerators: memory, bandwidths and operations per second.

Rates are the vendors' dense ones (no sparsity), per accelerator; `link_bytes_per_s` is the sum of both directions, as
vendors quote NVLink. Sources: NVIDIA data sheets of A100, H100, H200, H20, L40S, RTX A6000, RTX PRO 6000 and of the
Blackwell HGX and NVL72 systems; H800 is an H100 with 400 GB/s of NVLink (RollPacker, arXiv 2509.21009).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

TERA, GIGA = 1e12, 1e9

HOST_LINK_SHARE = 0.47
"""Of a GPU's host link by its data sheet, while weights or optimizer states go to host memory or come back.

vLLM's sleep mode (A100, PCIe 4 with 32 GB/s) moves 61 GB on one GPU out in 2.8 s and back in 2.9 s, 59 GB on each of
four GPUs in 5.9 s and 5.4 s: 0.67 and 0.33 of the sheet's rate. This is their geometric mean, off by sqrt(2) either
way.
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: short name, as in `H100`.
        memory_bytes: its memory as reported to programs.
        memory_bytes_per_s: bandwidth of that memory.
        flops: dense floating point operations per second by bytes of an operand: 2 (bf16), 1 (fp8), 0.5 (fp4).
            A format that the accelerator lacks is computed in the next wider one.
        link_bytes_per_s: to the other accelerators of the node, both directions together.
        host_link_bytes_per_s: to host memory, one direction.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float
    fp4_flops: float
    link_bytes_per_s: float
    host_link_bytes_per_s: float

    @property
    def host_copy_bytes_per_s(self) -> float:
        """Bytes a second at which large copies go to host memory or come back."""
        return HOST_LINK_SHARE * self.host_link_bytes_per_s

    def flops(self, bytes_per_operand: float) -> float:
        """Dense operations per second on operands of that many bytes."""
        if bytes_per_operand > 1.5:
            return self.bf16_flops
        return self.fp8_flops if bytes_per_operand > 0.75 else self.fp4_flops


def _gpu(name: str, gb: float, tb_s: float, bf16: float, fp8: float, fp4: float, link: float, host: float) -> Gpu:
    return Gpu(name, int(gb * GIGA), tb_s * TERA, bf16 * TERA, fp8 * TERA, fp4 * TERA, link * GIGA, host * GIGA)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100", 80, 2.039, 312, 312, 312, 600, 32),
        _gpu("H100", 80, 3.35, 989, 1979, 1979, 900, 64),
        _gpu("H800", 80, 3.35, 989, 1979, 1979, 400, 64),
        _gpu("H200", 141, 4.8, 989, 1979, 1979, 900, 64),
        _gpu("H20", 96, 4.0, 148, 296, 296, 900, 64),
        _gpu("GH200", 96, 4.0, 989, 1979, 1979, 900, 450),
        _gpu("B200", 180, 8.0, 2250, 4500, 9000, 1800, 64),
        _gpu("B300", 268, 8.0, 2250, 4500, 13500, 1800, 64),
        _gpu("GB200", 185, 8.0, 2500, 5000, 10000, 1800, 225),
        _gpu("GB300", 278, 8.0, 2500, 5000, 15000, 1800, 225),
        _gpu("L40S", 48, 0.864, 362, 733, 733, 64, 32),
        _gpu("RTX6000PRO", 96, 1.792, 504, 1007, 2015, 128, 64),
        _gpu("A6000", 48, 0.768, 155, 155, 155, 64, 32),
    )
}

# The largest card that is sold under a name, where that is not the one of the table: H100 of 96 GB and NVL of 94 GB,
# H800 of 94 GB, H20 of 141 GB, GH200 of 144 GB (HBM3e), B200 of 192 GB, B300 and GB300 of 288 GB, GB200 of 192 GB.
_LARGEST_GB = {"H100": 96, "H800": 96, "H20": 141, "GH200": 144, "B200": 192, "B300": 288, "GB200": 192, "GB300": 288}


def largest_memory_bytes(gpu: Gpu) -> int:
    """Memory of the largest accelerator that is sold under the name of `gpu`, bytes."""
    return max(gpu.memory_bytes, int(_LARGEST_GB.get(gpu.name, 0) * GIGA))


# Text that may precede or follow a name without a space: `8xH100`, `H100SXM5`, `A100PCIE`, `GB200NVL72`.
_BEFORE, _AFTER = r"(?<![a-z0-9])(?:nvidia|rtx|\d+x)*", r"(?:sxm\d*|pcie|nvl\d*|x\d+)*(?![a-z0-9])"
# Spellings that contain no name of the table; words are separated by a space.
_SPELT = {"RTX6000PRO": "rtx(?:pro ?6000|6000 ?pro)"}
_PATTERNS = {name: re.compile(_BEFORE + _SPELT.get(name, name.lower()) + _AFTER) for name in GPUS}


def gpu_of(text: str) -> Gpu | None:
    """The accelerator that a name means (`h100_sxm`, `NVIDIA H100 80GB HBM3`, `H800`); None when it is not known.

    Names count as whole words only: an `H1000` is no H100, and a `GB200` no B200.
    """
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower()).replace("rtx ", "rtx")
    return next((GPUS[name] for name, pattern in _PATTERNS.items() if pattern.search(plain)), None)


def near_gpu(text: str) -> str | None:
    """The known accelerator that a name looks most like; None where it looks like none."""
    near = difflib.get_close_matches(text.upper(), GPUS, 1, 0.5)
    return near[0] if near else None
