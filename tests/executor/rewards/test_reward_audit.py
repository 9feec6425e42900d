"""A reward is tried and audited on this machine: what is right is paid, nothing else is, and who fails is named."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlplan.executor.rewards.local_scoring import tried, try_functions
from rlplan.executor.rewards.reward_audit import answer_text, audit_job, references
from rlplan.plans.files.prompt_rows import Prompt, read_rows
from rlplan.plans.schema.job import load_job, scoring_paths
from rlplan.plans.yaml.errors import InputError

HERE = Path(__file__).parent
JOB = """\
rlplan_job: 1
name: tried
model: {path: nowhere/model, dtype: float32}
data: {path: data.jsonl}
reward: REWARD
rollout: {prompts_per_step: 2, samples_per_prompt: 2, max_prompt_tokens: 8, max_response_tokens: 56}
algorithm: {name: grpo, learning_rate: 0.001}
search: {tp: [1], micro_batch_tokens: [64]}
"""
MATH = "{kind: math, deadline_s: 5.0}"
CODE = "{kind: code, deadline_s: 5.0}"


def function(name, deadline_s=5.0):
    return f"{{kind: function, function: 'audited:{name}', deadline_s: {deadline_s}}}"


@pytest.fixture
def job_of(tmp_path):
    """`job_of(reward, rows)`: path of a job with this reward and data."""

    def job_of(reward, rows, module=""):
        (tmp_path / "job.yaml").write_text(JOB.replace("REWARD", reward))
        (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (tmp_path / "audited.py").write_text(module)
        return tmp_path / "job.yaml"

    return job_of


def row(name, answer, **further):
    return {"id": name, "prompt": f"task {name}", "answer": answer, **further}


def counts(found):
    return found.audit.model_dump(exclude={"rows", "of"})


def test_an_audit_of_mathematics_pays_right_answers_alone(job_of):
    rows = [
        row("a", "2"),
        row("b", r"$\frac{1}{2}$"),
        row("c", 0.5),
        row("d", 17),
        row("e", "5", solution=r"\boxed{6}"),
    ]
    found = audit_job(load_job(job_of(MATH, rows)), job_of(MATH, rows))
    assert counts(found) == {"references": 5, "full": 4, "wrong": 14, "paid": 0, "refused": 0}, "b and c are the same"
    assert [(each.id, each.line, each.probe, each.reward) for each in found.failed] == [("e", 5, "reference", 0.0)]
    assert found.zero == 14 and not found.audit.passed and "5 rows: 4 of 5 own answers" in found.audit.text


def test_an_audit_of_code_names_bad_references_and_weak_tests(job_of):
    rows = [
        row("good", "assert add(1, 2) == 3", reference="def add(a, b):\n    return a + b"),
        row("fenced", "assert mul(2, 3) == 6", reference="```python\ndef mul(a, b):\n    return a * b\n```"),
        row("bad", "assert sub(2, 1) == 1", reference="def sub(a, b):\n    return a"),
        row("weak", "assert zero(5) == 0", reference="def zero(n):\n    return n - n"),
        row("unsolved", "assert neg(1) == -1"),
    ]
    path = job_of(CODE, rows)
    found = audit_job(load_job(path), path)
    failed = [(each.id, each.probe) for each in found.failed]
    assert failed == [("bad", "reference"), ("weak", "constant")]
    assert counts(found) == {"references": 4, "full": 3, "wrong": 15, "paid": 1, "refused": 0}
    assert found.left_out == ["code: 1 row of 5 without a reference solution to try"]


def test_rows_are_taken_evenly_and_refused_ones_are_counted(job_of):
    rows = [row(f"r{number}", str(number) if number != 25 else "") for number in range(100)]
    path = job_of(MATH, rows)
    found = audit_job(load_job(path), path, most=10)
    assert (found.audit.rows, found.audit.of, found.audit.refused) == (10, 100, 1)
    (failure,) = found.failed
    assert (failure.id, failure.line, failure.probe, failure.reward) == ("r25", 26, "row", None)
    assert "answer is empty" in failure.why


EXACT = "def score(prompt, response, answer):\n    return 2.0 * (response == str(answer)) - 1.0\n"
BOXED = "def score(prompt, response, answer):\n    return float(response == '\\\\boxed{%s}' % answer)\n"
ANY = "def score(prompt, response, answer):\n    return float(bool(response))\n"
PROMPT = "def score(prompt, response, answer):\n    return float(response in prompt and bool(response))\n"


@pytest.mark.parametrize(
    ("module", "paid", "full"),
    [(EXACT, 0, 3), (BOXED, 0, 3), (ANY, 12, 3)],
    ids=["exact", "boxed", "any text"],
)
def test_a_function_is_paid_for_some_form_of_the_answer(job_of, module, paid, full):
    path = job_of(function("score"), [row("a", "x1"), row("b", "x2"), row("c", "x3")], module)
    found = audit_job(load_job(path), path)
    assert (found.audit.references, found.audit.full, found.audit.paid) == (3, full, paid)
    assert found.audit.wrong == 15, "a blank, a constant, and three forms of another row's answer"


def test_a_function_that_pays_no_guess_is_said_to_be_unaudited(job_of):
    path = job_of(function("score"), [row("a", "x1"), row("b", "x2")], PROMPT)
    found = audit_job(load_job(path), path)
    assert counts(found) == dict.fromkeys(("references", "full", "wrong", "paid", "refused"), 0)
    assert found.left_out == [
        "function is not audited: it pays no answer as it is, in a box or in tags; write references"
    ]
    path = job_of(function("score"), [row("a", "x1", reference="task a"), row("b", "x2", reference="wrong")], PROMPT)
    assert [(each.id, each.probe) for each in audit_job(load_job(path), path).failed] == [("b", "reference")]


def test_a_function_that_returns_no_reward_ends_the_audit(job_of):
    path = job_of(
        function("score"), [row("a", "x1")], "def score(prompt, response, answer):\n    return answer or None\n"
    )
    with pytest.raises(InputError, match="'audited:score': the reward function returned 'x1'; return a number"):
        audit_job(load_job(path), path)


def test_parts_that_know_no_row_are_left_out_and_said(job_of):
    pattern = "{kind: format, pattern: '.*', deadline_s: 1.0, weight: 0.5}"
    parts = f"[{function('score')}, {pattern}, {{kind: overlong, cache_tokens: 8}}]"
    path = job_of(parts, [row("a", "1"), row("b", "2")], EXACT)
    job = load_job(path)
    found = audit_job(job, path)
    assert found.left_out == [f"{name} is not audited: it knows nothing of a row" for name in ("format", "overlong")]
    paths = scoring_paths(job, path)
    rows, _ = read_rows(paths.data, job.reward)
    results = list(tried(job, paths, [(rows[0], "1"), (rows[0], "2")]))
    assert [result.reward for result in results] == [1.5, -0.5]
    assert [part.label for part, _ in results[0].parts] == ["function", "format"]


def test_each_part_is_tried_and_audited_on_the_rows_that_it_names(job_of):
    parts = "[{kind: math, deadline_s: 9.0, rows: [gsm8k]}, " + function("score")[:-1] + ", rows: [mine]}]"
    rows = [row("a", "1") | {"data_source": "gsm8k"}, row("b", "x2") | {"data_source": "mine"}]
    path = job_of(parts, rows, EXACT)
    job, paths = load_job(path), scoring_paths(load_job(path), path)
    read, _ = read_rows(paths.data, job.reward)
    results = list(tried(job, paths, [(read[1], "x2"), (read[0], "1"), (read[0], "x2")]))
    assert [result.reward for result in results] == [1.0, 1.0, 0.0]
    assert [[part.label for part, _ in result.parts] for result in results] == [["function"], ["math"], ["math"]]
    found = audit_job(job, path)
    assert (found.audit.references, found.audit.full, found.audit.refused) == (2, 2, 0)


def test_a_function_is_tried_before_a_run(job_of):
    asked = SimpleNamespace(text="ask", answer="x1")
    for body, says in (("return {} or None", "returned None"), ("raise KeyError(answer)", ""), ("return 1", "")):
        path = job_of(function("score"), [row("a", "x1")], f"def score(prompt, response, answer):\n    {body}\n")
        job = load_job(path)
        with pytest.raises(InputError, match=says) if says else contextlib.nullcontext():
            try_functions(job, scoring_paths(job, path), [(asked.text, asked.answer, ())])


DOWN = """\
from rlplan.executor.rewards.functions import InfrastructureError

def score(prompt, response, answer):
    if response == "x2":
        raise InfrastructureError("the service is down")
    return float(response == answer)
"""


def test_what_the_machine_cannot_score_is_no_failure_of_a_row(job_of):
    path = job_of(function("score"), [row("a", "x1", reference="x1"), row("b", "x2", reference="x2")], DOWN)
    found = audit_job(load_job(path), path)
    assert counts(found) == {"references": 1, "full": 1, "wrong": 5, "paid": 0, "refused": 0} and found.failed == []
    (said,) = found.left_out
    assert said.startswith("function: 2 responses could not be scored: InfrastructureError: the service is down")


HANGS = """\
import os, time

def score(prompt, response, answer):
    if response == "hang":
        while True:
            try:
                time.sleep(9)
            except BaseException:
                pass
    if response == "die":
        os._exit(3)
    return float(response == answer)
"""


def test_a_response_that_hangs_or_kills_costs_no_other(job_of):
    path = job_of(function("score", 0.5), [row("a", "1")], HANGS)
    job = load_job(path)
    paths = scoring_paths(job, path)
    (only,), _ = read_rows(paths.data, job.reward)
    given = ["1", "hang", "2", "die", "1"] * 2
    results = list(tried(job, paths, [(only, response) for response in given]))
    assert [result.reward for result in results] == [1.0, 0.0, 0.0, 0.0, 1.0] * 2
    whys = {response: result.why for response, result in zip(given, results, strict=True)}
    assert "no reward within 0.5 s" in whys["hang"] and "died: exit code 3" in whys["die"] and whys["1"] == ""


@pytest.mark.parametrize(
    ("answer", "text"),
    [("$x$", "x"), ("$$ x $$", "x"), (3, "3"), (0.5, "0.5"), (["7"], "7"), ({"ground_truth": "1"}, "1"), (None, "")],
)
def test_an_answer_is_written_as_a_response_would(answer, text):
    assert answer_text(answer) == text


def test_a_worked_answer_is_its_own_reference(job_of):
    part = load_job(job_of(MATH, [row("a", "1")])).reward
    assert list(references(part, Prompt("a", "ask", r"so \boxed{3}"))) == [r"so \boxed{3}"]
    assert list(references(part, Prompt("a", "ask", "work\n#### 3"))) == ["work\n#### 3"]
    assert list(references(part, Prompt("a", "ask", "3"))) == [r"\boxed{3}"]
