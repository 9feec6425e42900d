"""Compares a placement with the live cluster: which of its nodes it would take, what it lacks, and whether all nodes
share the folder of a run and have the same model."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from ...plans.schema.job import pretrained
from ...plans.yaml.errors import InputError
from ..processes.actors import track, within
from ..processes.host import cluster_address
from .live_nodes import PROBE_S, LeasedNode, on_node
from .run_placement import Room


async def check_shared(
    folder: Path,
    nodes: Sequence[LeasedNode],
    why: str = "since trainer ranks on every node write checkpoints there",
) -> None:
    """Raises InputError, which says `why`, if a node does not share `folder` with this process: each node has to read
    what this process writes there, and this process what the node writes. One node alone is not checked."""
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in nodes if node.node_id != here]
    if not others:
        return
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(8)
    name = f".shared-{token}"
    written = folder / name
    written.write_text(token, encoding="utf-8")
    try:
        calls = [
            _answer.options(**on_node(node.node_id)).remote(str(folder.resolve()), name, number)
            for number, node in enumerate(others)
        ]
        waits = (within(PROBE_S, track(c), f"node {n.facts.address}") for c, n in zip(calls, others, strict=True))
        for number, (node, fault) in enumerate(zip(others, await asyncio.gather(*waits), strict=True)):
            answer = folder / f"{name}-{number}"
            if fault is None and not (answer.is_file() and answer.read_text(encoding="utf-8") == token):
                fault = "what it writes there is not seen here"
            if fault is not None:
                raise InputError(
                    f"node {node.facts.address} does not share this folder: {fault}; name one with --out that all "
                    f"nodes share, {why}",
                    str(folder),
                )
    finally:
        for path in folder.glob(f"{name}*"):
            path.unlink(missing_ok=True)


@ray.remote(num_cpus=0, max_retries=0)
def _answer(folder: str, name: str, number: int) -> str | None:
    """Copy the token of `name` in `folder` into a file of this node; returns the error, or None."""
    try:
        token = (Path(folder) / name).read_text(encoding="utf-8")
        (Path(folder) / f"{name}-{number}").write_text(token, encoding="utf-8")
    except OSError as error:
        return f"{error.strerror or error}"
    return None


COMPARED = ("*.safetensors", "*.safetensors.index.json", "*config.json", "tokenizer.json", "vocab.json")
"""Files of a model's folder that are compared between nodes."""

BLOCKS, BLOCK_BYTES = 16, 65536  # of each file of weights, that are compared

COPIES_S = 600.0  # for a busy file system to read them


async def same_models(model: str, nodes: Sequence[LeasedNode]) -> None:
    """Raises InputError if nodes have different copies of a model (its name as `JobPaths.model`): ranks and engines
    would train and decode a mixture. A hub's model is compared where it is in the cache of a node.

    Of a file of weights the size, the header (names, shapes and types) and blocks here and there are compared: two
    fine-tunes of one model have the same header. Of a hub's model a node may have some files alone; the commit, and
    what two nodes both have, are compared.
    """
    others = {node.node_id: node.facts.address for node in nodes}
    if len(others) < 2:
        return
    calls = [track(_model_files.options(**on_node(node)).remote(model)) for node in others]
    waits = (within(COPIES_S, call, f"node {address}") for call, address in zip(calls, others.values(), strict=True))
    found = list(zip(others.values(), await asyncio.gather(*waits), strict=True))
    hub_id = Path(model).is_absolute() is False
    absent = [address for address, files in found if not files]
    if absent and not hub_id:
        raise InputError(
            f"node {absent[0]} has no model there; copy it to all nodes, or to a folder that they share", model
        )
    known = [(address, files) for address, files in found if files]
    for address, files in known[1:]:
        first, ours = known[0]
        names = {*ours} & {*files} if hub_id else {*ours, *files}
        if differ := sorted(name for name in names if ours.get(name) != files.get(name)):
            shown = ", ".join(differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else "")
            remedy = "name model.revision, and fetch it on both" if hub_id else "copy the same model to both"
            raise InputError(f"is another model on node {address} than on node {first}: {shown}; {remedy}", model)


@ray.remote(num_cpus=0, max_retries=0)
def _model_files(model: str) -> dict[str, str]:
    return model_files(model)


def model_files(model: str) -> dict[str, str]:
    """By name of a file of a model on this machine, a digest of what `same_models` compares; {} if it is not here."""
    name, revision = pretrained(model)
    folder = Path(name)
    if not folder.is_absolute():
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json", **revision)
        if not isinstance(cached, str):
            return {}
        folder = Path(cached).parent
    files = {path.name: path for kind in COMPARED for path in folder.glob(kind)}
    digests = {name: _digest(path) for name, path in files.items()} if "config.json" in files else {}
    return digests if Path(name).is_absolute() or not digests else {**digests, "the commit": folder.name}


def _digest(path: Path) -> str:
    size, seen = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if path.suffix == ".json":
            return hashlib.file_digest(file, "sha256").hexdigest()
        # The header, whose length stands first; of a file that is none (a pointer of git-lfs) any number does.
        seen.update(file.read(min(int.from_bytes(file.read(8), "little"), size)))
        for number in range(BLOCKS):
            file.seek(max(0, (size - BLOCK_BYTES) * (number + 1) // BLOCKS))
            seen.update(file.read(BLOCK_BYTES))
    return f"{size}:{seen.hexdigest()}"


class LiveCheck(NamedTuple):
    """What a start would find now.

    Attributes:
        addresses: of the nodes that it would take, None for each that is lacking; empty without a cluster.
        lack: what is lacking, or None.
        in_cluster: whether RAY_ADDRESS names a cluster; without one, the nodes may be added later.
    """

    addresses: list[str | None]
    lack: str | None
    in_cluster: bool


def live_check(rooms: Sequence[Room], kind: str) -> LiveCheck:
    """Compare the nodes that are needed with the cluster that RAY_ADDRESS names, after connecting to it; without that
    variable, with this machine, on which Ray would be started. `kind`: of devices, cpu or cuda.

    Raises InputError if RAY_ADDRESS is no address, RunFailed if no cluster answers there.
    """
    if cluster_address() is None:
        needs = f"needs {len(rooms)} nodes: set RAY_ADDRESS to the head of a Ray cluster that has them"
        return LiveCheck([], needs if len(rooms) > 1 else None, in_cluster=False)
    from ..processes.actors import start_ray
    from .live_nodes import choose, cluster_nodes, device_resource

    start_ray()
    resource = device_resource(kind)
    chosen, lack = choose(cluster_nodes(resource), rooms, resource)
    return LiveCheck([None if node is None else node.address for node in chosen], lack, in_cluster=True)
