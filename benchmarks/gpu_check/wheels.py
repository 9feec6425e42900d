"""Brings together the packages that a GPU machine without network lacks for rlplan and vLLM, to be carried there.

    python -m benchmarks.gpu_check.wheels --out FOLDER [--part-mb 60] [--freeze FILE] [--python 3.12] [--resolve]

The machine has torch 2.11 and transformers, with all that these need; or, given its `pip freeze` in FILE, exactly what
that lists. vLLM 0.24.0 is built for torch 2.11. pip resolves vLLM, and what pyproject.toml asks for on GPUs, for the
machine's Python on Linux x86-64 with its torch; what the machine has is left out, the rest is downloaded, and files of
60 MiB or more are cut into parts. On the machine, `sh FOLDER/install.sh [PYTHON]` verifies, joins and installs them.
Prints one JSON line: {"packages", "left_out", "bytes", "largest", "split", "out"}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from rlplan.plans.yaml.errors import InputError, RunFailed

from ..entry import run
from .command_parts import end_of
from .wheel_parts import prepare

VLLM = "0.24.0"
HAS = {"torch": "2.11.0", "transformers": None}
"""What the machine has, with its version where that decides, if no --freeze tells."""
KEPT = ("torch", "torchvision", "torchaudio", "triton", "transformers")
"""Packages of --freeze that stay as they are: the machine's CUDA goes with them. Others are replaced where vLLM needs
another version."""
NEWEST_GLIBC = 39
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


def wanted(pyproject: Path = PYPROJECT) -> list[str]:
    """Requirements of rlplan on GPUs, with vLLM at the version that fits the machine's torch."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["gpu"]]
    return [f"vllm=={VLLM}", *(need for need in needs if not need.startswith("vllm"))]


def frozen(text: str) -> dict[str, str]:
    """Versions by name from the output of `pip freeze`; lines without a version (`-e …`, `name @ file`) are left out.

    A local part of a version (`2.11.0+cu130`) is left out too: the index has none.
    """
    found = {}
    for line in text.splitlines():
        name, equals, version = line.split("#")[0].strip().partition("==")
        if equals and not name.startswith("-"):
            found[canonical(name)] = version.split(";")[0].strip().split("+")[0]
    return found


def closure(report: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """The packages among those of a pip report that `names` are, or need, directly or through others."""
    from packaging.requirements import Requirement

    metadata = {canonical(item["metadata"]["name"]): item["metadata"] for item in report["install"]}
    environment = {key: str(value) for key, value in report["environment"].items()}
    reached: set[tuple[str, str]] = set()
    waiting = [(canonical(name), "") for name in names]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in reached or name not in metadata:
            continue
        reached.add((name, extra))
        for line in metadata[name].get("requires_dist", ()):
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({**environment, "extra": extra}):
                waiting += [(canonical(need.name), other) for other in ("", *sorted(need.extras))]
    return {name for name, _ in reached}


def lacking(report: Mapping[str, Any], has: Mapping[str, str] | None) -> tuple[dict[str, str], list[str]]:
    """(version by name of what must be carried, names that are left out) of a pip report.

    `has`: what the machine's `pip freeze` lists, by name; None: what HAS names, and what that needs.
    """
    resolved = {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}
    if has is None:
        there: Collection[str] = closure(report, HAS)
    else:
        there = {name for name, version in resolved.items() if name in has and _same(has[name], version)}
    return {n: v for n, v in sorted(resolved.items()) if n not in there}, sorted(n for n in resolved if n in there)


def _same(one: str, other: str) -> bool:
    """Whether two versions are one, but for local parts."""
    return one.split("+")[0] == other.split("+")[0]


def _pip(*arguments: str) -> None:
    """Run pip. Raises RunFailed with the end of what it said."""
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"pip {arguments[0]} failed: {end_of(done.stderr, 4)}")


def _target(python: str) -> list[str]:
    """pip's options for wheels of a Python on Linux x86-64, whatever this machine is."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, 4, -1)]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    return [*platforms, "--python-version", python, "--implementation", "cp", "--only-binary", ":all:"]


def resolve(python: str, has: Mapping[str, str] | None) -> dict[str, Any]:
    """pip's report on everything that is needed on the machine, whether it is there or not. Raises RunFailed."""
    versions = HAS if has is None else {name: has[name] for name in KEPT if name in has}
    with tempfile.TemporaryDirectory(prefix="rlplan-wheels-") as folder:
        constraints, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        lines = [f"{name}=={version}\n" for name, version in versions.items() if version is not None]
        constraints.write_text("".join(lines), encoding="utf-8")
        _pip(
            "install", "--dry-run", "--quiet", "--ignore-installed", "--target", str(Path(folder) / "nowhere"),
            "--report", str(report), "--constraint", str(constraints), *_target(python), *wanted(),
        )  # fmt: skip
        result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return result


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for what is carried.")
@click.option(
    "--part-mb", type=click.IntRange(1, 1024), default=60, show_default=True, help="MiB that no file may reach."
)
@click.option("--freeze", type=click.Path(path_type=Path), help="Output of `pip freeze` on the machine.")
@click.option("--python", default="3.12", show_default=True, help="Python of the machine.")
@click.option("--resolve", "only_resolve", is_flag=True, help="Only print what would be carried.")
def main(out: Path, part_mb: int, freeze: Path | None, python: str, only_resolve: bool) -> None:
    """Download into --out the packages that a GPU machine lacks."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("is not empty; name a new folder with --out, nothing was written", str(out))
    try:
        has = None if freeze is None else frozen(freeze.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}; give the output of `pip freeze`", str(freeze)) from None
    packages, left_out = lacking(resolve(python, has), has)
    facts = {"python": python, "packages": packages, "left_out": left_out}
    if only_resolve:
        click.echo(json.dumps(facts))
        return
    (out / "wheels").mkdir(parents=True)
    names = [f"{name}=={version}" for name, version in packages.items()]
    _pip("download", "--quiet", "--no-deps", "--dest", str(out / "wheels"), *_target(python), *names)
    manifest = prepare(out, part_mb * 2**20, facts)
    click.echo(json.dumps({key: value for key, value in manifest.items() if key != "files"} | {"out": str(out)}))


if __name__ == "__main__":
    run(main)
