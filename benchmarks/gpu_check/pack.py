"""Packs what rlplan needs on a GPU machine that reaches nothing into a few archives, each small enough to travel.

    python -m benchmarks.gpu_check.pack OUT [--python 3.12] [--part-mb 50]

The machine has torch 2.11 for CUDA 13, transformers, numba, numpy, click, rich and networkx. Wheels of the rest are
unpacked, rid of what one Hopper GPU and a dense model do not need (FlashAttention 2, Ray's jars and its libraries for
Java and learning), compiled to bytecode and compressed by kind: some 240 MB in place of 1.6 GB of whole wheels. Needs
pip, tar and xz, and for the bytecode a Python of that version (without one, imports there take longer).

    OUT/1-base.tar.xz   pydantic, pulp, highspy, all small packages: plans can be solved while the rest travels
    OUT/2-ray.tar.xz, 3-vllm.tar.xz.00, …, 4-kernels.tar.xz.00, …   `cat NAME.tar.xz* | tar -xJ -C SITE` each

There: PYTHONPATH=SITE:PARENT_OF_RLPLAN. Prints one JSON line, {"python", "bytes", "compiled", "files": {NAME: bytes}}.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import click

from rlplan.plans.yaml.errors import InputError, RunFailed

from ..entry import run
from .plans_part import end_of

PACKAGES = """
vllm==0.24.0 ray xgrammar==0.2.3 pydantic==2.13.4 pydantic-core==2.46.4 annotated-types typing-inspection
typing-extensions httpx2 httpcore2 truststore anyio sniffio idna h11 aiohappyeyeballs aiohttp aiosignal attrs blake3
cachetools cbor2 cloudpickle compressed-tensors==0.17.0 depyf==0.20.0 astor dill diskcache einops fastapi==0.136.3
frozenlist highspy<1.16 ijson interegular jiter jsonschema jsonschema-specifications referencing rpds-py lark==1.2.2
llguidance==1.7.6 lm-format-enforcer==0.11.3 loguru math-verify latex2sympy2-extended antlr4-python3-runtime==4.13.2
mistral-common==1.13.1 model-hosting-container-standards==0.1.16 msgpack msgspec multidict openai openai-harmony==0.0.8
outlines-core==0.2.14 partial-json-parser prometheus-client prometheus-fastapi-instrumentator propcache psutil pulp<4
py-cpuinfo pybase64 pycountry pydantic-extra-types pydantic-settings python-dotenv python-json-logger python-multipart
pyzmq sentencepiece setproctitle starlette supervisor jmespath tiktoken uvicorn uvloop watchfiles websockets
apache-tvm-ffi==0.1.9 yarl gguf anthropic docstring-parser mcp mcp-types sse-starlette httpx httpcore certifi requests
urllib3 charset-normalizer distro opentelemetry-api opentelemetry-sdk opentelemetry-semantic-conventions
opentelemetry-proto protobuf googleapis-common-protos opentelemetry-semantic-conventions-ai narwhals nvidia-ml-py
fastsafetensors tabulate
"""
"""All that vLLM 0.24 and rlplan import beside what the machine has; of those with a version, vLLM needs that one."""

NEEDLESS = (
    "ray/jars", "ray/rllib", "ray/dashboard/client", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm-rs",
    "vllm/third_party/fmha_sm100", "xgrammar/lib", "pulp/solverdir", "mistral_common/data",
)  # fmt: skip
KERNELS = ("vllm/_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
NEWEST_GLIBC = 39


def command(*words: str) -> None:
    """Run a command. Raises RunFailed with the end of what it said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunFailed(f"{words[0]} is not here; install it") from None
    if done.returncode:
        raise RunFailed(f"{' '.join(words[:4])} failed: {end_of(done.stderr, 4)}")


def download(wheels: Path, python: str) -> None:
    """Bring the wheels, for that Python on Linux x86-64, whatever this machine is. Raises RunFailed."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, 4, -1)]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64"]
    target = ["--python-version", python, "--implementation", "cp", *(w for tag in tags for w in ("--platform", tag))]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    names = PACKAGES.split()
    command(*pip, "--only-binary", ":all:", "--dest", str(wheels), *target, *names)


def unpack(wheels: Path, site: Path) -> None:
    """Unpack all wheels into one folder, without what is needless; a wheel goes as soon as it is unpacked."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archived:
            for member in archived.infolist():
                path = Path(archived.extract(member, site))
                if member.external_attr >> 16 & 0o100:  # zipfile drops permissions; Ray starts programs of its wheel
                    path.chmod(0o755)
        wheel.unlink()
    for name in NEEDLESS:
        path = site / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def archive(site: Path, out: Path, name: str, members: Sequence[str], part_bytes: int) -> None:
    """Write `name`.tar.xz of these members of the folder, the kernels apart; in parts where it is larger than one."""
    target = out / f"{name}.tar.xz"
    apart = [] if members is KERNELS else [f"--exclude={kernel}" for kernel in KERNELS]
    there = [member for member in members if (site / member).exists()]
    command("tar", "-C", str(site), "-I", "xz -6 -T0", "-cf", str(target), *apart, *there)
    if target.stat().st_size > part_bytes:
        command("split", "-d", "-b", str(part_bytes), str(target), f"{target}.")
        target.unlink()


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--python", default="3.12", show_default=True, help="Python of the machine.")
@click.option("--part-mb", type=click.IntRange(1, 1024), default=50, show_default=True, help="MB of a file at most.")
def main(out: Path, python: str, part_mb: int) -> None:
    """Download and pack into the new folder OUT what a GPU machine lacks."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("is not empty; name a new folder, nothing was written", str(out))
    wheels, site = out / "wheels", out / "site"
    wheels.mkdir(parents=True)
    download(wheels, python)
    unpack(wheels, site)
    own = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python3"))
    compiler = shutil.which(f"python{python}") or next(map(str, own), None)
    if compiler is not None:  # by hash: times of files do not survive the archives. Files of other Pythons fail alone.
        words = (compiler, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-j", "0", str(site))
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    large = ("ray", "vllm", "xgrammar")
    kinds: dict[str, Sequence[str]] = {
        "1-base": sorted(path.name for path in site.iterdir() if path.name not in large),
        "2-ray": ("ray",),
        "3-vllm": ("vllm", "xgrammar"),
        "4-kernels": KERNELS,
    }
    for name, members in kinds.items():
        archive(site, out, name, members, part_mb * 10**6)
    for folder in (wheels, site):
        shutil.rmtree(folder)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    facts = {"python": python, "bytes": sum(files.values()), "compiled": compiler is not None, "files": files}
    click.echo(json.dumps(facts))


if __name__ == "__main__":
    run(main)
