"""The published series of the paper's figures, read from a file of x, y pairs."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplan.plans.yaml.errors import InputError

PUBLISHED_CAP = 16384
"""Cap in tokens under which the lengths of figure 2a were sampled."""

TASKS = ("math", "code", "judge")
_CAP_NAMES = {4096: "4k", 8192: "8k", 16384: "16k", 32768: "32k"}


@dataclass(frozen=True)
class Figures:
    """One file of published series."""

    path: Path
    series: dict[str, Any]

    @staticmethod
    def read(path: Path) -> Figures:
        """Read a file. Raises InputError if it is absent or holds no length CDF."""
        try:
            series = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InputError("no such file; give the published series with --figures", str(path)) from None
        except ValueError as error:
            raise InputError(f"is not JSON: {error}", str(path)) from None
        if not isinstance(series, dict) or not any(f"fig2a_{task}" in series for task in TASKS):
            raise InputError(
                "holds no series fig2a_math, fig2a_code or fig2a_judge (tokens, CDF in per cent)", str(path)
            )
        return Figures(path, series)

    def tasks(self) -> tuple[str, ...]:
        """Tasks whose lengths are published."""
        return tuple(task for task in TASKS if f"fig2a_{task}" in self.series)

    def cdf(self, task: str) -> list[tuple[float, float]]:
        """(tokens, share of the responses within them); what is above the last share was cut by `PUBLISHED_CAP`."""
        points = [(float(tokens), float(percent) / 100) for tokens, percent in self.series[f"fig2a_{task}"]]
        # The figure's axis ends at a quarter of the cap; how much ends between there and the cap stands in the note.
        note = re.search(rf"below the \S+ cap:.*?\b{task} (\d+\.?\d*)", str(self.series.get("fig2a_tail_note", "")))
        if note and points[-1][0] < PUBLISHED_CAP:
            points.append((float(PUBLISHED_CAP), float(note.group(1)) / 100))
        return points

    def sensitivity(self, cap_tokens: int) -> dict[tuple[float, float], float]:
        """Published seconds by (over-issue of prompts, of samples), (1, 1) first; empty if none for this cap."""
        data, cap = self.series.get("fig11_seconds", {}), _CAP_NAMES.get(cap_tokens, "")
        points: dict[tuple[float, float], float] = {}
        factors = data.get("eta", [])
        for eta, seconds in zip(factors, data.get("fixedP_vary_R", {}).get(cap, []), strict=False):
            points[1.0, float(eta)] = float(seconds)
        for eta, seconds in zip(factors, data.get("fixedR_vary_P", {}).get(cap, []), strict=False):
            points[float(eta), 1.0] = float(seconds)
        for name, by_cap in data.items():
            match = re.fullmatch(r"both_(\d+\.?\d*)", name)
            if match and cap in by_cap:
                points[float(match.group(1)), float(match.group(1))] = float(by_cap[cap])
        return points if (1.0, 1.0) in points else {}

    def step_s(self, model: str) -> dict[str, float]:
        """Mean published seconds of a step by system ("verl", "rollpacker"); empty if not published for this size."""
        names = {"verl": f"fig9_{model}_verl", "rollpacker": f"fig9_{model}_rp"}
        return {
            system: statistics.fmean(y for _, y in self.series[name])
            for system, name in names.items()
            if name in self.series
        }

    def phases_s(self, model: str) -> dict[str, dict[str, float]]:
        """Published seconds of RollPacker's phases by kind of round; empty if not published for this size."""
        phases: dict[str, dict[str, float]] = self.series.get("fig10c_seconds", {}).get(model, {})
        return phases
