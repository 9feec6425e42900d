"""Error messages as a table: what somebody gets wrong, and the one line that says what is wrong and what to do.

`{at}` is the folder. The whole line is compared, so that a change of wording is a change that somebody looked at.
"""

from __future__ import annotations

import pytest

from .command_line import rlplan

TABLE = [
    # command line, file edited, old text, new text, message
    ("solve {at}", "job.yaml", "deadline_s: 2.0", "deadline: 2.0", ""),
    ("solve {at}", "job.yaml", "kind: math", "kind: maths", ""),
    ("solve {at}", "job.yaml", "tp: [1]", "tp: [2, 1]", ""),
    ("solve {at}", "job.yaml", "samples_per_prompt: 2", "samples_per_prompt: 1", ""),
    ("solve {at}", "job.yaml", "path: data.jsonl", "path: dta.jsonl", ""),
    ("solve {at}", "job.yaml", "path: model,", "path: modell,", ""),
    ("solve {at}", "job.yaml", "micro_batch_tokens: [128]", "micro_batch_tokens: [64]", ""),
    ("solve {at}", "job.yaml", "name: toy", "name: other", ""),
    ("solve {at}", "cluster.yaml", "cores: 2", "cores: 1", ""),
    ("solve {at}", "cluster.yaml", "per_node: 2,", "per_node: 4,", ""),
    ("solve {at}", "cluster.yaml", "memory_bytes: 1000000000}", "memory_bytes: 24}", ""),
    ("solve {at}", "profile.yaml", "rlplan_profile: 1", "rlplan_profile: 2", ""),
    ("solve {at}", "lengths.jsonl", '"tokens": 3,', '"tokens": "3",', ""),
    ("solve {at} --bias-budget 2", None, "", "", ""),
    ("solve {at} --objective usd_per_unit", None, "", "", ""),
    ("solve {at} --out {at}/job.yaml", None, "", "", ""),
    ("solve {at} --out {at}/no/plan.yaml", None, "", "", ""),
    ("solve {at}/nowhere", None, "", "", ""),
    ("show {at}/job.yaml", None, "", "", ""),
    ("show {at}/plan.yaml", "plan.yaml", "mode: sync", "mode: synch", ""),
    ("show {at}/plan.yaml", "plan.yaml", "cutoff_tokens: null", "cutoff_tokens: 12", ""),
    ("show {at}/plan.yaml", "plan.yaml", "long: null\n  reward", "long: [\n  reward", ""),
    ("show {at}/plan.yaml --html {at}/no/page.html", None, "", "", ""),
    ("simulate {at}/plan.yaml --set plan.job.rounds.short.rollout.engins=1", None, "", "", ""),
    ("simulate {at}/plan.yaml", "plan.yaml", "path: profile.yaml", "path: profil.yaml", ""),
    ("execute {at}/plan.yaml --dry-run", "plan.yaml", "engines: 2,", "engines: 3,", ""),
    ("execute {at}/plan.yaml --dry-run", "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002", ""),
    ("report {at}", None, "", "", ""),
    ("report {at}/nowhere", None, "", "", ""),
    ("tune {at}", None, "", "", ""),
    ("fmt {at}/data.jsonl", None, "", "", ""),
    ("check {at}/nowhere.yaml", None, "", "", ""),
    ("check {at}/plan.yaml --policy {at}/nowhere.yaml", None, "", "", ""),
    ("diff {at}/plan.yaml {at}/nowhere.yaml", None, "", "", ""),
    ("diff {at}/plan.yaml nosuchrevision:plan.yaml", None, "", "", ""),
    ("diff {at}/plan.yaml {at}/job.yaml", None, "", "", ""),
]


def said(command, file, old, new, solved):
    if file is not None:
        path = solved / file
        text = path.read_text()
        assert text.count(old) >= 1, (file, old)
        path.write_text(text.replace(old, new, 1))
    result = rlplan(*(word.format(at=solved) for word in command.split()))
    return result.returncode, result.stderr.strip().replace(str(solved), "{at}")


@pytest.mark.parametrize(
    ("command", "file", "old", "new", "message"), TABLE, ids=[f"{row[0]} {row[3]}" for row in TABLE]
)
def test_the_message_says_where_what_and_what_to_do(command, file, old, new, message, solved):
    code, line = said(command, file, old, new, solved)
    assert (code, line) == (2, message)
