"""Profiles that ship: GPUs and models by data-sheet physics and public measurements, not of anybody's cluster.

One file a (GPU, model), `h100.qwen2.5-7b.yaml`; `build.py` writes them. They say what a value rests on and how far it
may be off; `rlplan profile` on your own machines replaces them.
"""

from __future__ import annotations

from pathlib import Path

from ...plans.errors import InputError
from ...plans.yaml_io import load
from ..schema import Profile

FOLDER = Path(__file__).parent
GPU_NAMES = ("B200", "H100", "H20", "H200", "H800")
MODEL_NAMES = ("Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-7B", "Qwen3-30B-A3B")


def library_path(gpu: str, model: str) -> Path:
    """Where the profile of a GPU and a model is, if there is one."""
    return FOLDER / f"{gpu.lower()}.{model.lower()}.yaml"


def library_names() -> list[tuple[str, str]]:
    """(GPU, model) of the profiles that ship."""
    return [(gpu, model) for gpu in GPU_NAMES for model in MODEL_NAMES if library_path(gpu, model).is_file()]


def library_profile(gpu: str, model: str) -> Profile:
    """The profile of a GPU and a model by their short names. Raises InputError when none ships."""
    path = library_path(gpu, model)
    if not path.is_file():
        known = ", ".join(f"{g} {m}" for g, m in library_names())
        raise InputError(f"no profile of {model} on {gpu} ships; there are: {known}")
    return load(path, Profile)
