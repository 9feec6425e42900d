"""`rlplan audit` as a user meets it: its words, its picture, its page."""

import json
import random
from pathlib import Path

import pytest

from .command_line import data, printed, rlplan

FILES = Path(__file__).parents[1] / "frameworks" / "logs" / "files"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """slime's dumps of 24 steps that train the 8 shortest of 12 groups, over 30 prompts."""
    torch = pytest.importorskip("torch")
    folder, rng, order, number = tmp_path_factory.mktemp("dumps"), random.Random(2), [], 0
    for rollout in range(24):
        groups = []
        for _ in range(12):
            order = order or rng.sample(range(30), 30)
            row = order.pop()
            groups.append((int(20 * 2.718 ** (row / 15 + rng.gauss(0, 0.3))), number, row))
            number += 1
        samples = [
            {"group_index": group, "prompt": f"<b>Problem</b> {row}", "response_length": tokens - k,
             "tokens": [0] * (tokens + 5), "status": "completed", "reward": float(row < 20)}
            for tokens, group, row in sorted(groups)[:8] for k in range(2)
        ]  # fmt: skip
        torch.save({"rollout_id": rollout, "samples": samples}, folder / f"rollout_{rollout}.pt")
    return folder


def test_the_terminal_says_how_many_whom_and_how_long(dumps):
    text = printed("audit", dumps, "--cap", 400)
    assert "over-sampling silently dropped" in text and "of 28" in text
    assert "trained over unconditioned mean length: 0." in text and "estimated" in text
    assert "█" in text and "░" in text and "<b>Problem</b> 2" in text
    assert "trained in fewer passes" in text and "note: the length ratio is an estimate" in text


def test_json_and_page_say_the_same(dumps, tmp_path):
    result = data("audit", dumps, "--cap", 400, "--html", tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    issued, dropped = result["prompts_issued"], result["prompts_dropped"]
    assert dropped == issued - result["prompts_trained"] == len(result["dropped_groups"]) > 90
    assert f"dropped {dropped:,} of {issued:,} prompts" in page and f"{result['length_ratio']:.3f}" in page
    named = result["dropped"][0]["prompt"].replace("<", "&lt;").replace(">", "&gt;")
    assert page.count('<script type="application/json">') == 3 and f"<td>{named}" in page.replace(
        ' data-label="prompt"', ""
    )
    assert json.loads(page.split('<script type="application/json">')[1].split("</script>")[0])["data"]


def test_verls_texts_need_no_lengths_to_name_prompts(tmp_path):
    rows = [
        {"step": step, "input": f"q{k}", "output": "a", "score": float(k % 2), "gts": ""}
        for step in range(1, 7) for k in range(8) if not (k == 3 and step < 6)
    ]  # fmt: skip
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = data("audit", tmp_path / "steps.jsonl", "--rows", 9, "--html", tmp_path / "page.html")
    (row,) = result["dropped"]
    assert (row["prompt"], row["trained"], row["dropped"]) == ("q3", 1, 4)
    assert result["prompts_dropped"] == 4 + 5 and result["length_ratio"] is None and result["at_least"]
    text = printed("audit", tmp_path / "steps.jsonl")
    assert "at least 4 passes over a prompt were given out and not trained" in text
    assert "mean length: unknown" in text


@pytest.mark.parametrize(
    ("source", "message"), [("verl_console.log", "holds no samples that were trained"), ("none", "no such file")]
)
def test_what_is_no_dump_is_said_in_one_line(source, message):
    result = rlplan("audit", FILES / source)
    assert result.returncode == 2 and message in result.stderr and result.stderr.count("\n") == 1
