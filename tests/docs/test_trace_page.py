"""docs/trace.md names every event of a run's trace and of a group's journal, with every key, and no others."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import rlplan
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.rounds.permits.permit_events import PlacedJob
from rlplan.traces.kept_samples import KeptSample
from rlplan.traces.trace import read_trace
from rlplan.traces.trace_events import Evaluation, Step

ROOT = Path(rlplan.__file__).parent


def written_keys(moves=False):
    """Keys of each event of a run, or of the moves of groups, from the calls that write one: `X.event("name", key=...)`
    and `trace.write("name", ...)`.

    A step is written from the fields of `Step`, an evaluation from those of `Evaluation`; `**facts` of a start are
    what `start` is given, `**drafts.fields` what that function of DraftedRound returns.
    """
    typed = {"step": set(Step.__struct_fields__), "evaluation": set(Evaluation.__struct_fields__)}
    keys = defaultdict(set, {} if moves else typed)
    facts = set()
    for path in sorted((ROOT / "executor").rglob("*.py")):
        if (path.stem in ("bound_driver", "group_change", "move_driver")) != moves:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "fields":
                returned = next(part.value for part in node.body if isinstance(part, ast.Return))
                keys["drafts"] |= {key.value for key in returned.keys}
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "start":
                mappings = [argument for argument in node.args if isinstance(argument, ast.Dict)]
                names = {key.value for mapping in mappings for key in mapping.keys if isinstance(key, ast.Constant)}
                names |= {keyword.arg for keyword in node.keywords if keyword.arg}
                facts |= names if "start_s" in names else set()
            if node.func.attr in ("event", "write", "_write") and node.args and isinstance(node.args[0], ast.Constant):
                name = node.args[0].value
                if isinstance(name, str) and name.isidentifier() and (node.keywords or name == "checkpoint"):
                    keys[name] |= {keyword.arg for keyword in node.keywords if keyword.arg}
                    if any(ast.unparse(keyword.value) == "facts" for keyword in node.keywords):
                        keys[name] |= {"**facts"}
    for names in keys.values():
        if "**facts" in names:
            names.remove("**facts")
            names |= facts
    return dict(keys)


def documented_keys(part):
    """Keys of each event in a part of the page (0: the trace, 1: turns, 2: moves): a row with an event's name begins
    it, the rows below have its keys."""
    keys = {}
    event = ""
    page = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    for line in re.split(r"\n## (?:turns|moves)\.jsonl\n", page)[part].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[0] == "event":
            continue
        if cells[0]:
            event = cells[0].strip("`")
            keys[event] = set()
        keys[event] |= set(re.findall(r"`(\w+)`", cells[1]))
    return keys


def test_the_page_names_every_event_and_key_of_runs_and_of_moves():
    runs, moves = written_keys(), written_keys(moves=True)
    assert len(runs["step"]) > 20 and len(runs["sample"]) > 15 and len(runs["run"]) > 4
    assert len(moves) > 10 and len(moves["in"]) > 3
    assert documented_keys(0) == runs and documented_keys(2) == moves


def test_the_page_names_every_event_and_key_of_a_groups_journal(tmp_path):
    clock = [0.0]
    wide = PlacedJob("wide", ((0, 1), (2,)), (60.0, 30.0), pace_s=200.0, keep=1)
    live = LivePermits("g1", "multi_rate", [wide], tmp_path / "turns.jsonl", lambda: clock[0])
    arrival = live.ready("wide", "p1")
    live.place_job(PlacedJob("small", ((0, 1), (2,)), (5.0, 5.0), pace_s=30.0))
    live.ready("small", "p2")
    live.tail("wide", arrival, 0)
    live.released("wide", arrival, 0, live.now_s())
    live.done("wide", arrival, 0)
    live.leave("small", "p2")
    live.remove_job("small")
    live.wake_s = 0.0
    live.wake()
    live.close()
    written = defaultdict(set)
    for event in read_trace(tmp_path / "turns.jsonl"):
        inner = {key for turn in event.get("begun", ()) for key in turn}
        written[event["event"]] |= (event.keys() | inner) - {"event", "t_s"}
    documented = documented_keys(1)
    assert documented.keys() == written.keys()
    page = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8").split("## turns.jsonl")[1]
    for event, keys in written.items():
        assert documented[event] <= keys and all(f"`{key}`" in page for key in keys), event


def test_the_page_of_kept_responses_names_every_key_and_hint():
    page = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    files, hints = page.partition("\n## Files\n")[2].split("\n## Hints of reward hacking\n")
    keys = [line.split(" | ")[0] for line in files.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", " ".join(keys)) == list(KeptSample.__struct_fields__)
    written = re.findall(r'name="(\w+)"', (ROOT / "traces" / "report_texts.py").read_text(encoding="utf-8"))
    assert re.findall(r"^\| `(\w+)`", hints, re.MULTILINE) == written
