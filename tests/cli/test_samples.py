"""`rlplan samples`: what is shown of which responses, texts that a terminal would follow, and what is refused."""

import json

import pytest

from rlplan.traces.kept_samples import samples_file

from ..traces.kept import kept, write_kept
from .command_line import printed, refused, rlplan

EVIL = "\x1b]0;owned\x07\x1b[31mred [bold]loud[/bold] [/nothing] \u202eback :smile: \x00end"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that kept three steps."""
    rows = []
    for number in (1, 2, 3):
        for n in range(4):
            prompt = "often" if n < 2 else f"p{number}"
            rows.append(kept(
                number, n, prompt=prompt, kind="long" if number == 2 else "short", tokens=100 * number + n,
                reward=None if n == 3 else n / 2, truncated=n == 3, fate="deferred" if n == 3 else "trained",
                kept="drawn" if n < 3 else "longest", advantage=None if n == 3 else -0.5,
                response=f"Answer {number}.{n} " + "so " * 400 + ("needle" if n == 2 else ""),
            ))  # fmt: skip
    return write_kept(tmp_path_factory.mktemp("kept") / "run", *rows)


def heads(*arguments):
    """(step, sample) of each response that `--json` prints."""
    return [
        (row["step"], row["sample"]) for row in map(json.loads, printed("samples", *arguments, "--json").splitlines())
    ]


def test_the_last_step_is_shown_unless_something_is_looked_for(run):
    text = printed("samples", run)
    assert "step 3, short round, prompt often; 3 tokens, weights a:0" in text and "step 2" not in text
    assert text.count("prompt often") == 1, "a prompt stands once above its responses"
    line = "0.1 reward 0.5; 301 tokens; advantage -0.5; decoded in 2.00 s, scored in 0.100 s"
    assert line in " ".join(text.split())
    assert "no reward; 303 tokens, cut off; deferred; longest of the step" in " ".join(text.split())
    assert "characters ...]" in text and "4 of 4 responses; step 3 of 3 with responses" in text and "hint" not in text
    assert "characters ...]" not in printed("samples", run, "--full")
    assert "2 of 4 responses" in printed("samples", run, "--limit", 2)


def test_filters_and_orders_go_together(run):
    assert heads(run) == [(3, n) for n in range(4)]
    assert heads(run, "--step", "1:2", "--sort", "longest", "--limit", 3) == [(2, 3), (2, 2), (2, 1)]
    assert heads(run, "--step", "2:", "--sort", "worst") == [
        (2, 0),
        (3, 0),
        (2, 1),
        (3, 1),
        (2, 2),
        (3, 2),
        (2, 3),
        (3, 3),
    ]
    assert heads(run, "--step", ":1", "--sort", "best", "--limit", 1) == [(1, 2)]
    assert heads(run, "--only", "truncated") == heads(run, "--only", "deferred") == [(1, 3), (2, 3), (3, 3)]
    assert (
        heads(run, "--only", "long", "--search", "NEEDLE") == [(2, 2)]
        and heads(run, "--step", 2, "--prompt", "p1") == []
    )
    found = printed("samples", run, "--search", "needle", "--step", 1)
    assert "needle" in found and "[... " in found, "what was looked for stands at a long text's end and is shown"
    assert "no response fits, in steps 1 to 3 of 3" in printed("samples", run, "--search", "nowhere")


def test_one_prompt_stands_over_the_steps_side_by_side(run):
    text = printed("samples", run, "--prompt", "often")
    assert "prompt often, kept in 3 steps" in text
    (head,) = [line for line in text.splitlines() if "step 1" in line]
    assert "step 3" in head and "step 2" not in head, "80 columns hold the first and the last step"
    assert "Answer 1.1" in text and "Answer 3.1" in text and "Answer 2" not in text
    assert "Answer 1.1" not in printed("samples", run, "--prompt", "often", "--limit", 1)


def test_texts_that_a_terminal_would_follow_are_spelled_out(tmp_path):
    out = write_kept(tmp_path / "run", kept(1, response=EVIL, prompt_text=EVIL, prompt=EVIL, version=EVIL))
    for options in ((), ("--prompt", EVIL), ("--search", "[bold]"), ("--full",)):
        text = " ".join(printed("samples", out, *options).split())
        assert not any(sign in text for sign in "\x1b\x07\x00\u202e")
        assert r"\x1b[31mred [bold]loud[/bold] [/nothing]" in text and ":smile:" in text
    assert json.loads(printed("samples", out, "--json"))["response"] == EVIL


def test_hints_stand_below_whatever_is_shown(tmp_path):
    loops = [kept(n // 8 + 1, n, prompt=f"p{n}", reward=float(n % 2), response=f"so {n}" * 90 if n % 2 else f"No {n}.")
             for n in range(80)]  # fmt: skip
    text = printed("samples", write_kept(tmp_path / "run", *loops), "--step", 1, "--limit", 1)
    assert (
        "hint, look at these: 100% of the responses with the best rewards repeat" in text and "step 3, prompt p" in text
    )


def test_what_holds_no_responses_is_refused_with_what_to_do(run, tmp_path):
    refused(rlplan("samples", tmp_path / "none"), "no such run folder")
    refused(rlplan("samples", tmp_path), "holds no run (no trace.jsonl)")
    bare = write_kept(tmp_path / "two" / "bare")
    refused(rlplan("samples", bare), "kept no responses", "--samples 16")
    assert printed("samples", write_kept(tmp_path / "one" / "a", kept(1)).parent).count("It is 2.") == 1
    write_kept(tmp_path / "two" / "other", kept(1))
    refused(rlplan("samples", tmp_path / "two"), "name one of them: bare or other")
    refused(rlplan("samples", run, "--step", 9), "steps 1 to 3")
    for step in ("", ":", "a", "1:2:3", "-1"):
        refused(rlplan("samples", run, f"--step={step}"), "neither a step nor a range")


def test_a_torn_file_is_named_and_the_others_are_shown(tmp_path):
    out = write_kept(tmp_path / "run", *(kept(number) for number in (1, 2)))
    samples_file(out, 2).write_bytes(samples_file(out, 2).read_bytes()[:-9])
    shown = rlplan("samples", out, "--step", "1:", "--json")
    assert shown.returncode == 0 and "warning: " in shown.stderr and "step-000002.jsonl.gz" in shown.stderr
    assert json.loads(shown.stdout.splitlines()[0])["step"] == 1
    refused(rlplan("samples", out), "torn", "delete it")


@pytest.mark.parametrize("value", ["-1", "some", "1.5", ""])
def test_execute_takes_a_number_or_all(value, tmp_path):
    refused(rlplan("execute", tmp_path / "plan.yaml", f"--samples={value}"), "neither a number from 0 on nor all")
