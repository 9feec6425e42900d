"""Data sheets of accelerators: memory, bandwidths and operations per second.

Rates are the vendors' dense ones (no sparsity), per accelerator; `link_bytes_per_s` is the sum of both directions, as
vendors quote NVLink, else PCIe. Sources: NVIDIA's data sheets of these cards and of Blackwell's HGX and NVL72 systems;
H800 is an H100 with 400 GB/s of NVLink (RollPacker, arXiv 2509.21009), and A800 such an A100. Accelerators that are not
planned for: the data sheets of their makers.
"""

from __future__ import annotations

import math
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
        _gpu("A100-PCIE", 80, 1.935, 312, 312, 312, 64, 32),
        _gpu("A100-40GB", 40, 1.555, 312, 312, 312, 600, 32),
        _gpu("A100-PCIE-40GB", 40, 1.555, 312, 312, 312, 64, 32),
        _gpu("A800", 80, 2.039, 312, 312, 312, 400, 32),
        _gpu("A800-PCIE", 80, 1.935, 312, 312, 312, 64, 32),
        _gpu("A800-40GB", 40, 1.555, 312, 312, 312, 64, 32),
        _gpu("H100", 80, 3.35, 989, 1979, 1979, 900, 64),
        _gpu("H100-PCIE", 80, 2.0, 756, 1513, 1513, 128, 64),
        _gpu("H100-NVL", 94, 3.9, 835, 1671, 1671, 128, 64),
        _gpu("H100-96GB", 96, 3.35, 989, 1979, 1979, 900, 64),
        _gpu("H800", 80, 3.35, 989, 1979, 1979, 400, 64),
        _gpu("H800-PCIE", 80, 2.0, 756, 1513, 1513, 128, 64),
        _gpu("H800-NVL", 94, 3.9, 835, 1671, 1671, 128, 64),
        _gpu("H200", 141, 4.8, 989, 1979, 1979, 900, 64),
        _gpu("H200-NVL", 141, 4.8, 835, 1671, 1671, 128, 64),
        _gpu("H20", 96, 4.0, 148, 296, 296, 900, 64),
        _gpu("H20-141GB", 141, 4.8, 148, 296, 296, 900, 64),
        _gpu("GH200", 96, 4.0, 989, 1979, 1979, 900, 450),
        _gpu("GH200-144GB", 144, 4.9, 989, 1979, 1979, 900, 450),
        _gpu("B200", 180, 8.0, 2250, 4500, 9000, 1800, 64),
        _gpu("B300", 268, 8.0, 2250, 4500, 13500, 1800, 64),
        _gpu("GB200", 185, 8.0, 2500, 5000, 10000, 1800, 225),
        _gpu("GB300", 278, 8.0, 2500, 5000, 15000, 1800, 225),
        _gpu("L40S", 48, 0.864, 362, 733, 733, 64, 32),
        _gpu("L40", 48, 0.864, 181, 362, 362, 64, 32),
        _gpu("L4", 24, 0.3, 121, 242, 242, 64, 32),
        _gpu("A40", 48, 0.696, 150, 150, 150, 64, 32),
        _gpu("A30", 24, 0.933, 165, 165, 165, 64, 32),
        _gpu("A10", 24, 0.6, 125, 125, 125, 64, 32),
        _gpu("A10G", 24, 0.6, 70, 70, 70, 64, 32),
        _gpu("RTX6000PRO", 96, 1.792, 504, 1007, 2015, 128, 64),
        _gpu("RTX6000ADA", 48, 0.96, 364, 728, 728, 64, 32),
        _gpu("A6000", 48, 0.768, 155, 155, 155, 64, 32),
        _gpu("RTX5090", 32, 1.792, 210, 419, 1676, 128, 64),
        _gpu("RTX4090", 24, 1.008, 165, 330, 330, 64, 32),
        _gpu("RTX3090", 24, 0.936, 71, 71, 71, 64, 32),
    )
}
"""By name. What is sold under one name in several sizes or forms has a row for each; the plain name is the first."""

_NOT_CUDA, _NO_BF16 = "engines and trainers run on CUDA here", "it has no bfloat16"
NOT_PLANNED: dict[str, tuple[float, float, str]] = {
    "V100": (32, 0.9, _NO_BF16), "T4": (16, 0.32, _NO_BF16), "P100": (16, 0.732, _NO_BF16),
    "MI210": (64, 1.6, _NOT_CUDA), "MI250": (128, 3.28, _NOT_CUDA), "MI250X": (128, 3.28, _NOT_CUDA),
    "MI300": (192, 5.3, _NOT_CUDA), "MI300A": (128, 5.3, _NOT_CUDA), "MI300X": (192, 5.3, _NOT_CUDA),
    "MI308X": (192, 5.3, _NOT_CUDA), "MI325X": (256, 6.0, _NOT_CUDA), "MI350X": (288, 8.0, _NOT_CUDA),
    "MI355X": (288, 8.0, _NOT_CUDA), "Gaudi2": (96, 2.45, _NOT_CUDA), "Gaudi3": (128, 3.7, _NOT_CUDA),
    "TPUv4": (32, 1.2, _NOT_CUDA), "TPUv5e": (16, 0.82, _NOT_CUDA), "TPUv5p": (95, 2.77, _NOT_CUDA),
    "TPUv6e": (32, 1.64, _NOT_CUDA), "TPUv7": (192, 7.4, _NOT_CUDA), "Trainium": (32, 0.82, _NOT_CUDA),
    "Trainium2": (96, 2.9, _NOT_CUDA), "Ascend910B": (64, 1.6, _NOT_CUDA), "Ascend910C": (128, 3.2, _NOT_CUDA),
}  # fmt: skip
"""Well-known accelerators that are not planned for: GB of memory, its TB/s, and why."""

SAME_MEMORY = 0.08
"""Relative tolerance of memory: a card of 80 GB is written as 80e9 or as 80 * 2**30 bytes, and reports less."""

# Memory by which a card is sold where programs see less: B200 and GB200 of 192 GB, B300 and GB300 of 288 GB.
_SOLD_GB = {"B200": 192, "B300": 288, "GB200": 192, "GB300": 288}
# What NVML puts into the name of a GH200: GB of its CPU's memory.
_OF_ITS_CPU = {("GH200", 480): 96, ("GH200", 120): 96, ("GH200", 624): 144}


def has_memory(gpu: Gpu, memory_bytes: float) -> bool:
    """Whether these may be the bytes of one accelerator of that name."""
    most = max(gpu.memory_bytes, _SOLD_GB.get(gpu.name, 0) * GIGA)
    return (1 - SAME_MEMORY) * gpu.memory_bytes <= memory_bytes <= (1 + SAME_MEMORY) * most


def variants(gpu: Gpu) -> list[Gpu]:
    """All that is sold under the plain name of `gpu`, itself among them."""
    return [other for other in GPUS.values() if _plain(other) == _plain(gpu)]


def _plain(gpu: Gpu) -> str:
    return gpu.name.split("-")[0]


# Text that may precede or follow a name without a space: `8xH100`, `H100SXM5`, `A100PCIE`, `GB200NVL72`.
_BEFORE, _AFTER = r"(?<![a-z0-9])(?:nvidia|rtx|\d+x)*", r"(?:sxm\d*|pcie|nvl\d*|x\d+)*(?![a-z0-9])"
# Spellings that contain no name of the table; words are separated by a space.
_SPELT = {
    "RTX6000PRO": "rtx(?:pro ?6000|6000 ?pro)",
    "RTX6000ADA": "rtx6000 ?ada",
    "RTX5090": "(?:rtx)?5090",
    "RTX4090": "(?:rtx)?4090",
    "RTX3090": "(?:rtx)?3090",
}
_PATTERNS = {name: re.compile(_BEFORE + _SPELT.get(name, name.lower()) + _AFTER) for name in GPUS if "-" not in name}
_SIZE = re.compile(r"(?<![a-z0-9])(\d+) ?g(?:i?b)?(?![a-z0-9])")
_FORM = re.compile(r"pcie|nvl(?!\d)")


def gpu_of(text: str) -> Gpu | None:
    """The accelerator that a name means (`h100_sxm`, `NVIDIA A100-PCIE-40GB`, `H800`): by its plain name, the memory
    that it states, and its form (PCIe, NVL). None when it is not known, has no such memory, or is a slice (MIG).

    Names count as whole words only: an `H1000` is no H100, and a `GB200` no B200.
    """
    plain = _words(text)
    name = _plain_name_in(plain)
    if name is None or re.search(r"\bmig\b", plain):
        return None
    found = variants(GPUS[name])
    sizes = [GIGA * _OF_ITS_CPU.get((name, size), size) for size in _sizes(plain)]
    if name == "H20" and re.search(r"\b3e\b", plain):  # NVML's name of an H20 of 141 GB
        sizes.append(141 * GIGA)
    if sizes:
        found = [gpu for gpu in found if all(has_memory(gpu, size) for size in sizes)]
        nearest = min((abs(gpu.memory_bytes - sizes[0]) for gpu in found), default=0.0)
        found = [gpu for gpu in found if abs(gpu.memory_bytes - sizes[0]) == nearest]
    form = _FORM.search(plain)
    fits = [gpu for gpu in found if form is not None and form[0].upper() in gpu.name]
    return next(iter(fits or sorted(found, key=lambda gpu: "PCIE" in gpu.name or "NVL" in gpu.name)), None)


def states_memory(text: str) -> bool:
    """Whether a name says how much memory the accelerator has."""
    return bool(_sizes(_words(text)))


def hint_of(text: str) -> str:
    """What to say of a name that `gpu_of` does not know: what it is, and which known one is near; "" for nothing."""
    plain = _words(text)
    if re.search(r"\bmig\b", plain):
        return "a slice of a GPU (MIG) is not planned for; name whole GPUs"
    if name := _plain_name_in(plain):
        return f"no {name} has that memory; there are {', '.join(map(_gpu_text, variants(GPUS[name])))}"
    if other := next((name for name in NOT_PLANNED if re.search(_spaced(name.lower()), plain)), None):
        gb, tb_s, why = NOT_PLANNED[other]
        near = " or ".join(map(_gpu_text, _nearest(gb, tb_s)))
        return f"{_specification(other, gb, tb_s * TERA)} is not planned for: {why}; nearest by specification: {near}"
    alike = _as_read(plain.replace(" ", ""))
    spellings = [name for name in GPUS if _one_off(alike, _as_read(name.lower()))]
    spelt = max(spellings, key=lambda name: alike == _as_read(name.lower()), default=None)
    return "" if spelt is None else f"did you mean {spelt}?"


def _nearest(gb: float, tb_s: float) -> list[Gpu]:
    """The two accelerators with the nearest memory and bandwidth, by their ratios, of those without a CPU of their
    own."""

    def apart(gpu: Gpu) -> float:
        return abs(math.log(gpu.memory_bytes / GIGA / gb)) + abs(math.log(gpu.memory_bytes_per_s / TERA / tb_s))

    cards = (gpu for gpu in GPUS.values() if gpu.name == _plain(gpu) and gpu.host_link_bytes_per_s <= 64 * GIGA)
    return sorted(cards, key=apart)[:2]


def _spaced(name: str) -> str:
    """A pattern for a name as a whole word, with or without spaces in it."""
    return rf"(?<![a-z0-9]){' ?'.join(name)}(?![a-z0-9])"


def _plain_name_in(plain: str) -> str | None:
    return next((name for name, pattern in _PATTERNS.items() if pattern.search(plain)), None)


def _gpu_text(gpu: Gpu) -> str:
    return _specification(gpu.name, gpu.memory_bytes / GIGA, gpu.memory_bytes_per_s)


def _specification(name: str, gb: float, bytes_per_s: float) -> str:
    return f"{name} ({gb:.0f} GB, {bytes_per_s / TERA:.3g} TB/s)"


def _words(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).replace("rtx ", "rtx")


def _sizes(plain: str) -> list[int]:
    return [int(size) for size in _SIZE.findall(plain)]


def _as_read(name: str) -> str:
    """A name with digits in place of the letters that look like them."""
    return name.translate(str.maketrans("oil", "011"))


def _one_off(one: str, other: str) -> bool:
    """Whether two names are equal, one has one more character, or two neighbours are swapped; another character makes
    another GPU."""
    if len(one) == len(other):
        return any(one[:at] + one[at : at + 2][::-1] + one[at + 2 :] == other for at in range(len(one)))
    short, long = sorted((one, other), key=len)
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))
