"""The corpus that says "behaves as before": `python -m tests.corpus [planner] [outputs] [trained]` from the root.

    planner   plans of jobs and of groups of jobs, byte for byte outside their `volatile` block
    outputs   what check, diff, show, simulate, report, status and others print of them and of recorded runs
    trained   samples and weights of runs with fixed seeds on the CPU, with real engines: minutes, only when it is named

Prints which sections of which outputs are not as stored in tests/corpus/PART.txt, and ends with 1 if there are any.
`--write` stores them anew: a decision, which the commit names. `--out FOLDER` also writes the outputs themselves, so
that `diff -r` of the folders of two checkouts shows what changed.
"""

import argparse
import sys
import time
from pathlib import Path

import rlplan

from .outputs import played
from .stored import differences, write, write_full
from .trained import trained

PARTS = ("planner", "outputs", "trained")


def main() -> int:
    """Play the parts and compare them with what is stored."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: the first two")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", metavar="NAME", help="only scenarios whose name begins so")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write the outputs themselves there")
    parser.add_argument("--write", action="store_true", help="store anew")
    options = parser.parse_args()
    parts = options.parts or list(PARTS[:2])
    unknown = sorted(set(parts) - set(PARTS))
    if unknown or (options.write and options.only):
        parser.error(f"no such part: {', '.join(unknown)}" if unknown else "--write stores whole parts, without --only")
    root = Path(__file__).resolve().parents[2]
    if root not in (Path(folder).resolve() for folder in rlplan.__path__):
        parser.error(f"`import rlplan` finds {rlplan.__path__[0]}, not this checkout; set PYTHONPATH or install it")
    began = time.perf_counter()
    found = played([part for part in parts if part != "trained"], options.jobs, options.only)
    if "trained" in parts:
        found["trained"] = trained()
    lines = []
    for part, outputs in found.items():
        if options.out:
            write_full(options.out, part, outputs)
        if options.write:
            write(part, outputs)
        lines += differences(part, outputs, options.only)
    counted = ", ".join(f"{len(outputs)} outputs of {part}" for part, outputs in found.items())
    print(*lines, f"{counted} in {time.perf_counter() - began:.0f} s: {len(lines)} differ", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
