"""Seconds of transfers between trainer ranks and engine ranks by where weights lie: host memory, CUDA IPC, NCCL.

    python -m benchmarks.weight_parties.on_devices [--device cuda|cpu] [--slots host|ipc|nccl] [--json]

The parties are plain processes, one on each GPU, without vLLM: what fails here fails for torch, the driver or rlplan.
`ipc` puts an engine rank beside each trainer rank; `nccl` gives trainer and engines half of the GPUs each, and needs
two. With `--device cpu` the same parties run with gloo in place of NCCL and memory of the host in place of GPUs.

    {"slots": {"host": {"seconds": …, "gb_per_s": …, "mismatches": 0, "ranks": …, "readers": …}, "ipc": {…},
     "nccl": {"untried": WHY} or {"error": WHAT}}, "bytes": …, "device": …}

Exit code 1 if one of them failed or brought other weights than were sent.
"""

from __future__ import annotations

import json
import statistics
from typing import Any, get_args

import click

from rlplan.executor.weights.slots.slot_choice import SlotsName, choose
from rlplan.executor.weights.transfer.session import ReceivingNode, Session

from ..entry import run
from .party import plan_of
from .party_process import Party, all_of
from .transfers import DEADLINE_S, Transfers

HOST = "127.0.0.1"
REPEATS = 3
CPU_TENSORS, CUDA_TENSORS = 24, 128  # of 2 MB each
CPU_BUCKET_BYTES, CUDA_BUCKET_BYTES = 8 * 10**6, 64 * 10**6


class DeviceTransfers(Transfers):
    """Transfers from ranks on `rank_devices` to engine ranks on `reader_devices`."""

    def __init__(self, rank_devices: list[str], reader_devices: list[str], tensors: int) -> None:
        super().__init__(tensors)
        self._rank_devices, self._reader_devices = rank_devices, reader_devices
        self.board = self.party("board", "the host")
        self.ranks = [self.party("rank", device) for device in rank_devices]
        self.readers = [self.party("reader", device) for device in reader_devices]
        self.nbytes = 0

    def join(self, slots: SlotsName, bucket_bytes: int) -> None:
        """Have all parties join a session with these slots. Raises RuntimeError if one cannot."""
        plan = plan_of(self.tensors, len(self.ranks), bucket_bytes)
        self.nbytes = plan.nbytes
        port = self.board.call("serve", HOST, DEADLINE_S)
        uuids, reader_uuids = (
            self._uuids(self.ranks, self._rank_devices),
            self._uuids(self.readers, self._reader_devices),
        )
        found = choose(uuids, reader_uuids, slots)
        if found.slots != slots:
            raise RuntimeError(f"the devices do not allow {slots}: {found.reason}")
        nodes = [ReceivingNode(uuid, "", 1) for uuid in reader_uuids]
        if slots == "host":
            path = self.party("node", "the host").call("make", plan.largest, len(self.ranks))
            nodes = [ReceivingNode("here", path, len(self.readers))]
        session = Session(
            "devices", HOST, port, DEADLINE_S, tuple(nodes), ("here",) * len(self.ranks), plan, False, slots,
            tuple(uuids),
        )  # fmt: skip
        joins: list[tuple[Party, tuple[Any, ...]]] = [
            (party, ("open", session, rank, HOST, self._rank_devices[rank])) for rank, party in enumerate(self.ranks)
        ]
        for party, device, uuid in zip(self.readers, self._reader_devices, reader_uuids, strict=True):
            joins.append((party, ("open", session.for_reader(nodes[0].key if slots == "host" else uuid), uuid, device)))
        all_of(joins)

    def _uuids(self, parties: list[Party], devices: list[str]) -> list[str]:
        """UUIDs of devices; on a CPU, where all are one, their names stand for them."""
        found = all_of([(party, ("uuid", device)) for party, device in zip(parties, devices, strict=True)])
        return [uuid or device for uuid, device in zip(found, devices, strict=True)]


def layout(slots: SlotsName, device: str, gpus: int) -> tuple[list[str], list[str]] | str:
    """Devices of trainer ranks and of engine ranks, or why there are too few."""
    count = gpus if device == "cuda" else 2
    if not count:
        return "torch sees no GPU"
    names = [f"{device}:{number}" for number in range(count)]
    if slots != "nccl":
        return names, names
    if device == "cpu":
        return names, [f"cpu:{number}" for number in range(count, 2 * count)]
    if count < 2:
        return f"NCCL refuses two ranks on one GPU, and {count} is there"
    return names[: count // 2], names[count // 2 :]


def figures(device: str, wanted: SlotsName | None) -> dict[str, Any]:
    """All figures; see the module."""
    import torch

    gpus = torch.cuda.device_count() if device == "cuda" else 0
    tensors = CUDA_TENSORS if device == "cuda" else CPU_TENSORS
    bucket_bytes = CUDA_BUCKET_BYTES if device == "cuda" else CPU_BUCKET_BYTES
    names: tuple[SlotsName, ...] = get_args(SlotsName)
    found: dict[str, Any] = {}
    nbytes = 0
    for slots in names if wanted is None else (wanted,):
        places = layout(slots, device, gpus)
        if isinstance(places, str):
            found[slots] = {"untried": places}
            continue
        click.echo(f"{slots}: {len(places[0])} trainer ranks, {len(places[1])} engine ranks", err=True)
        try:
            found[slots], nbytes = measured(slots, *places, tensors, bucket_bytes)
        except RuntimeError as error:
            found[slots] = {"error": str(error)}
    return {"slots": found, "bytes": nbytes, "device": device}


def measured(
    slots: SlotsName, ranks: list[str], readers: list[str], tensors: int, bucket_bytes: int
) -> tuple[dict[str, Any], int]:
    """Figures of transfers with these slots, and bytes of the weights. Raises RuntimeError."""
    transfers = DeviceTransfers(ranks, readers, tensors)
    try:
        transfers.join(slots, bucket_bytes)
        transfers.send()  # the first one connects
        sent = [transfers.send() for _ in range(REPEATS)]
    finally:
        transfers.close()
    seconds = statistics.median(seconds for seconds, _ in sent)
    return {
        "seconds": round(seconds, 4),
        "gb_per_s": round(transfers.nbytes / seconds / 1e9, 2),
        "mismatches": sum(wrong for _, wrong in sent),
        "ranks": len(ranks),
        "readers": len(readers),
    }, transfers.nbytes


@click.command()
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--slots", type=click.Choice(get_args(SlotsName)), help="These alone. Default: all that the GPUs allow.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(device: str, slots: SlotsName | None, as_json: bool) -> None:
    """Weights through host memory, CUDA IPC and NCCL."""
    result = figures(device, slots)
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=1))
    if any("error" in each or each.get("mismatches") for each in result["slots"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
