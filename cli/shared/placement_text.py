"""Who runs on which node and devices, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...executor.placement.seats import Placement
from ...plans.phrases.numbers import count


def placement_data(placement: Placement, addresses: Sequence[str | None]) -> list[dict[str, Any]]:
    """One entry for each node in use: its number, its address if it is known, and the devices of who runs there."""
    rows = []
    for number, (node, room) in enumerate(placement.nodes_in_use().items()):
        engines = {name: list(seat.devices) for name, seat in placement.engines.items() if seat.node == node}
        trainers = {
            plan: {rank: list(seat.devices) for rank, seat in enumerate(seats) if seat.node == node}
            for plan, seats in placement.trainers.items()
        }
        rows.append(
            {
                "node": node,
                "pool": room.pool,
                "address": addresses[number] if number < len(addresses) else None,
                "engines": engines,
                "trainers": {plan: ranks for plan, ranks in trainers.items() if ranks},
                "reward_workers": [i for i, place in enumerate(placement.reward_workers) if place == node],
            }
        )
    return rows


def placement_lines(placement: Placement, addresses: Sequence[str | None]) -> list[str]:
    """Lines of the same."""
    lines = []
    for row in placement_data(placement, addresses):
        lines.append(f"node {row['node']} of pool {row['pool']}" + (f": {row['address']}" if row["address"] else ""))
        lines += [f"  {_devices(devices)}: engine {name}" for name, devices in row["engines"].items()]
        for plan, ranks in row["trainers"].items():
            devices = sorted(device for held in ranks.values() for device in held)
            which = f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(sorted(ranks))}"
            lines.append(f"  {_devices(devices)}: trainer {plan}, {which}")
        if row["reward_workers"]:
            workers = row["reward_workers"]
            lines.append(f"  {count(len(workers), 'reward worker')}: {spans(workers)}")
    return lines


def _devices(devices: Sequence[int]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {spans(devices)}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, runs of them by their ends: `0-3, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
