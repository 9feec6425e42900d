"""`rlplan rewards try` and `audit`: what is printed of a reward on a job's own rows, and with which exit code."""

import json
import re
import subprocess
import sys

import pytest

from .command_line import data, printed, rlplan

JOB = """\
rlplan_job: 1
name: tried
model: {path: nowhere/model, dtype: float32}
data: {path: data.jsonl}
reward: {kind: math, deadline_s: 5.0}
rollout: {prompts_per_step: 2, samples_per_prompt: 2, max_prompt_tokens: 8, max_response_tokens: 56}
algorithm: {name: grpo, learning_rate: 0.001}
search: {tp: [1], micro_batch_tokens: [64]}
"""
ROWS = [("first", "2"), ("blank", ""), ("half", r"\frac{1}{2}"), ("three", "3")]


@pytest.fixture
def job(tmp_path):
    """The folder of a job whose model is nowhere, and one of whose rows cannot be scored."""
    (tmp_path / "job.yaml").write_text(JOB)
    lines = [json.dumps({"id": name, "prompt": f"task {name}", "answer": answer}) for name, answer in ROWS]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    return tmp_path


def edit(job, reward, module=""):
    text = (job / "job.yaml").read_text().replace("{kind: math, deadline_s: 5.0}", reward)
    (job / "job.yaml").write_text(text)
    (job / "mine.py").write_text(module)


def test_a_try_tells_each_step_and_the_reward(job):
    text = re.sub(r"in [\d.]+ \w+", "in SECONDS", printed("rewards", "try", job))
    assert text.splitlines()[:3] == [
        "row first (line 1); response: the row's answer, 9 characters", r"    \boxed{2}", "math: 1 in SECONDS",
    ]  # fmt: skip
    assert "  extracted: " in text and "  gold: number 2" in text and text.endswith("\nreward 1\n")
    (job / "said.txt").write_text("I say \\boxed{0.25}")
    given = printed("rewards", "try", job / "job.yaml", "--row", "half", "--response", job / "said.txt")
    assert f"response: the file {job / 'said.txt'}, 18 characters" in given and "\n  why: " in given
    assert given.endswith("\nreward 0\n")


def test_a_try_as_json_has_steps_by_part(job):
    edit(job, "[{kind: math, deadline_s: 5.0, weight: 2.0}, {kind: format, pattern: 'a.*', deadline_s: 1.0}, "
              "{kind: overlong, cache_tokens: 8}]")  # fmt: skip
    found = data("rewards", "try", job, "--row", "half", "--response", "a = 0.5")
    assert (found["id"], found["reward"], found["refused"], found["why"]) == ("half", 3.0, False, "")
    assert [(part["name"], part["value"], part["weight"]) for part in found["parts"]] == [
        ("math", 1.0, 2.0), ("format", 1.0, 1.0),
    ]  # fmt: skip
    assert found["left_out"] == ["overlong"] and ["pattern", "a.*"] in found["parts"][1]["steps"]
    text = printed("rewards", "try", job, "--row", "half", "--response", "0.5")
    assert "reward 2 = 2 x 1 + 1 x 0\nwithout overlong, which needs a model or its tokens\n" in text


def test_many_responses_give_a_line_each_in_order(job):
    given = [("half", "0.5"), ("blank", "1"), ("first", "I do not know"), ("half", "\\boxed{1}"), ("three", "3")] * 5
    lines = [json.dumps({"id": name, "response": response}) for name, response in given]
    (job / "said.jsonl").write_text("\n".join(lines) + "\n\n")
    printed_lines = printed("rewards", "try", job, "--responses", job / "said.jsonl", "--json").splitlines()
    found = [json.loads(line) for line in printed_lines]
    assert [each["id"] for each in found] == [name for name, _ in given]
    assert all(each.keys() == {"id", "reward", "refused", "why"} for each in found)
    assert [each["reward"] for each in found] == [1.0, None, 0.0, 0.0, 1.0] * 5
    assert [each["refused"] for each in found] == [False, True, False, False, False] * 5
    assert "answer is empty" in found[1]["why"] and found[0]["why"] == "" and found[3]["why"]
    text = printed("rewards", "try", job, "--responses", job / "said.jsonl").splitlines()
    assert text[-1] == "25 responses: 20 scored, mean reward 0.500, 5 refused" and text[1].startswith("blank: refused")


def test_responses_that_a_machine_failed_to_score_are_counted(job):
    edit(job, "{kind: function, function: 'mine:score', deadline_s: 5.0}", "def score(prompt, response, answer):\n"
         "    if response == 'down':\n        from rlplan.executor.rewards.functions import InfrastructureError\n"
         "        raise InfrastructureError('no service')\n    return 1.0\n")  # fmt: skip
    (job / "said.jsonl").write_text('{"id": "half", "response": "1"}\n{"id": "half", "response": "down"}\n')
    text = printed("rewards", "try", job, "--responses", job / "said.jsonl", code=1).splitlines()
    assert text[1].startswith("half: not scored") and "no service" in text[1]
    assert text[-1] == "2 responses: 1 scored, mean reward 1.000, 0 refused, 1 not scored"


def test_a_row_without_a_solution_is_refused_before_one_is_asked_for(job):
    edit(job, "{kind: code, deadline_s: 5.0}")
    result = rlplan("rewards", "try", job, "--row", "half")
    assert result.returncode == 1 and "the tests are no Python" in result.stdout and not result.stderr


def test_bad_responses_are_told_by_file_and_line(job):
    (job / "said.jsonl").write_text(
        '{"id": "hal", "response": "1"}\nno\n{"id": "half"}\n{"id": "half", "response": "1"}\n'
    )
    result = rlplan("rewards", "try", job, "--responses", job / "said.jsonl")
    assert result.returncode == 2 and result.stdout == "", "nothing is scored"
    unknown, malformed, without = result.stderr.splitlines()
    assert f"{job}/said.jsonl:1: no row of" in unknown and "did you mean 'half'?" in unknown
    assert f"{job}/said.jsonl:2: not valid JSON" in malformed
    assert f'{job}/said.jsonl:3: must be {{"id": …, "response": …}}' in without


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("try", "{at}", "--row", "blank"), 1, "row blank (line 2) is refused: answer is empty"),
        (("try", "{at}", "--row", "frist"), 2, "has the id 'frist'; did you mean 'first'?"),
        (("try",), 2, "try what? Name a job.yaml, or its folder"),
        (("try", "{at}/nowhere"), 2, "no such file"),
        (("try", "{at}", "--rows", "3"), 2, "--rows does not apply to try"),
        (("try", "{at}", "--row", "a", "--responses", "x"), 2, "leave out --row and --response"),
        (
            ("audit", "{at}", "--response", "3"),
            2,
            "--response does not apply to audit, which takes only --rows, --json",
        ),
        (("list", "--row", "3"), 2, "--row does not apply to list, which takes only --json"),
    ],
)
def test_what_cannot_be_tried_is_said_in_a_line(job, arguments, code, says):
    result = rlplan("rewards", *(argument.replace("{at}", str(job)) for argument in arguments))
    assert result.returncode == code and says in result.stdout + result.stderr
    assert len((result.stdout + result.stderr).splitlines()) == 1


def test_an_audit_counts_and_names_the_rows_that_fail(job):
    result = rlplan("rewards", "audit", job)
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "on 4 rows: 3 of 3 own answers got the full reward, 0 of 9 wrong ones did, 1 refused",
        "  line 2, row blank: is refused: answer is empty, and reward.kind math compares each response with it (id "
        "'blank'); write it",
        "failed",
    ]
    text = (job / "data.jsonl").read_text().splitlines()
    (job / "data.jsonl").write_text("\n".join(line for line in text if '"blank"' not in line))
    found = data("rewards", "audit", job, "--rows", 2)
    assert (found["rows"], found["of"], found["references"], found["wrong"]) == (
        2, 3, {"full": 2, "of": 2}, {"zero": 6, "paid": 0, "of": 6},
    )  # fmt: skip
    assert found["passed"] and found["failed"] == [] and found["refused"] == 0


FUNCTIONS = {
    "async": "async def score(prompt, response, answer):\n    return {'score': float(response == answer)}\n",
    "trl": "def score(completions, answer, **more):\n    return [float(c == a) for c, a in zip(completions, answer)]\n",
    "verl": "def score(data_source, solution_str, ground_truth):\n    return solution_str == ground_truth\n",
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_of_another_framework_is_audited(job, kind):
    edit(job, "{kind: function, function: 'mine:score', deadline_s: 5.0}", FUNCTIONS[kind])
    found = data("rewards", "audit", job, code=None)
    assert found["references"] == {"full": 3, "of": 3}
    assert [(each["id"], each["probe"], each["why"]) for each in found["failed"]] == [
        ("blank", "blank", "an empty response gets the full reward"),
    ]  # fmt: skip


def test_a_function_that_cannot_be_called_is_refused_everywhere(job):
    edit(job, "{kind: function, function: 'mine:score', deadline_s: 5.0}", "def score(args, sample):\n    return 1\n")
    for command in (("rewards", "try"), ("rewards", "audit")):
        refused = rlplan(*command, job)
        assert refused.returncode == 2 and refused.stdout == ""
        assert refused.stderr.startswith("error: reward.function 'mine:score': takes (args, sample)")
    checked = printed("check", job / "job.yaml", code=None)
    assert "[function-unfit] reward.function: 'mine:score' takes (args, sample)" in checked


def test_what_a_function_prints_is_no_part_of_the_result(job):
    module = "print('imported')\ndef score(prompt, response, answer):\n    print('called')\n    return 1.0\n"
    edit(job, "{kind: function, function: 'mine:score', deadline_s: 5.0}", module)
    (job / "said.jsonl").write_text('{"id": "half", "response": "1"}\n' * 3)
    command = [sys.executable, "-m", "rlplan.cli.main", "rewards", "try", str(job), "--json", "--responses"]
    ran = subprocess.run([*command, str(job / "said.jsonl")], capture_output=True, text=True, check=True)
    assert [json.loads(line)["reward"] for line in ran.stdout.splitlines()] == [1.0] * 3
    assert "imported" in ran.stderr and ran.stderr.count("called") == 3


@pytest.mark.parametrize(
    ("head", "row", "said", "shares"),
    [
        ("seconds", "0.3", "which answers are right is unknown: no column correct", (None, None)),
        (
            "seconds,correct",
            "0.3,{}",
            "50% of the answers are right, to how many of the prompts is unknown",
            (0.5, None),
        ),
        ("seconds,correct,uid", "0.3,{},a", "0% of the prompts have no right answer", (0.5, 0.0)),
    ],
)
def test_an_import_says_what_no_column_says(head, row, said, shares, begun):
    rows = [row.format(number % 2) for number in range(20)]
    (begun / "times.csv").write_text("\n".join([head, *rows]))
    command = ["rewards", "import", begun / "times.csv", "--profile", begun / "profile.yaml", "--force"]
    assert said in printed(*command)
    told = data(*command)
    assert (told["correct"], told["unsolved"]) == shares
    printed("solve", begun, "--trace", begun / "lengths.jsonl", "--mode", "sync", "--force")
