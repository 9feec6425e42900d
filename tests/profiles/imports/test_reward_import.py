"""Reward times of one's own in a profile: their law, their evidence, and what is wrong with a table of them."""

import pytest
import yaml

from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.plans.schema.levers import timeout_spec
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.imports.reward_import import executions_of, import_rewards, with_imported
from rlplan.profiles.library import library_profile
from rlplan.profiles.reward_tables import reward_assumed

ROWS = "".join(f"p{i // 4},{0.1 + 0.01 * (i // 4)},{int(i % 4 != 0)}\n" for i in range(36))
CSV = "prompt,exec_s,passed\n" + ROWS + "".join(f"q{i},30,0\n" for i in range(4))


def write(folder, text):
    (folder / "times.csv").write_text(text)
    return folder / "times.csv"


def test_right_and_wrong_answers_have_laws_of_their_own(tmp_path):
    law = executions_of(import_rewards(write(tmp_path, CSV), {}))
    assert law.unsolved == pytest.approx(4 / 13) and law.correct == pytest.approx(0.75)
    assert max(law.correct_s) == pytest.approx(0.18) and law.wrong_s[-1] == 30
    in_words = CSV.replace(",1\n", ",Passed\n").replace(",0\n", ",failed\n")
    assert executions_of(import_rewards(write(tmp_path, in_words), {})) == law


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (None, {}),
        (lambda row: 0, {"unsolved": 1.0}),
        (lambda row: 1, {"unsolved": 0.0, "correct": 1.0}),
        (lambda row: row % 4 > 0, {"correct": 0.75}),
    ],
    ids=["not said", "all wrong", "all right", "some right"],
)
def test_what_columns_do_not_say_is_not_written(answer, known, tmp_path):
    """Neither how many answers are right, nor to how many prompts."""
    rows = [f"{30 if row > 37 else 0.5}" + ("" if answer is None else f",{int(answer(row))}") for row in range(40)]
    head = "seconds" if answer is None else "seconds,correct"
    samples = import_rewards(write(tmp_path, "\n".join([head, *rows])), {})
    law = executions_of(samples)
    written = yaml.safe_load(dump(with_imported(library_profile("H100", "Qwen2.5-7B"), samples, "t")))["reward"]
    shares = {name: share for name, share in written["executions"].items() if not name.endswith("_s")}
    assert shares == known and ("correct_s" in written["executions"]) == ("correct" in known)
    assert law.wrong_s[-1] > 20 or known == {"correct": 0.75}
    # Deadlines that adapt then save nothing.
    assert known.get("unsolved") == 0 or reward_cost(
        with_imported(library_profile("H100", "Qwen2.5-7B"), samples, "t").reward, 8, timeout_spec(60.0, None)
    ).executions.unsolved == pytest.approx(1 - known.get("correct", 0))


def test_a_column_of_no_prompts_says_nothing_of_prompts(tmp_path):
    rows = "".join(f"0.3,{k % 2},\n" for k in range(40))
    assert executions_of(import_rewards(write(tmp_path, f"seconds,correct,prompt\n{rows}"), {})).unsolved is None


def test_an_imported_profile_costs_what_was_imported(tmp_path):
    profile = library_profile("H100", "Qwen2.5-7B")
    samples = import_rewards(write(tmp_path, CSV), {})
    imported = with_imported(profile, samples, "times.csv")
    assert reward_assumed(profile) and not reward_assumed(imported)
    evidence = imported.reward.evidence["per_sample_s"]
    assert "40 executions imported from times.csv" in imported.sources[evidence.source] and evidence.error > 0.1
    mean_s = sum(sample.seconds for sample in samples) / len(samples)
    found = reward_cost(imported.reward, 8, timeout_spec(60.0, None)).mean_s()
    assert found == pytest.approx(mean_s, rel=0.5), "right answers count once a prompt, its slowest"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prompt,passed\na,1\n", "none of its columns is seconds.*--column seconds=NAME"),
        ("seconds\nfast\n", ":2: seconds must be a number"),
        ("seconds\n-1\n", ":2: seconds must be from 0 to 3600"),
        ("seconds\n4000\n", ":2: seconds must be from 0 to 3600"),
        ("seconds,correct\n1,maybe\n", ":2: correct must be a number"),
        ("seconds\n1\n2\n", "has 2 rows; at least 20"),
    ],
)
def test_a_fault_is_one_line_with_what_to_do(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        import_rewards(write(tmp_path, text), {})
