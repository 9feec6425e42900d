"""Each thing that a user can get wrong gives one line with file, line number and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError

LOADERS: dict[str, Callable[[Path], Any]] = {
    "cluster.yaml": load_cluster,
    "job.yaml": load_job,
    "plan.yaml": load_plan,
}

# file, text to replace, text in its place, lines from there to the line at fault, words of the message
CASES = {
    "unknown key": ("job.yaml", "  workers: 1\n", "  workers: 1\n  fast: true\n", 1,
        ["unknown key 'reward.fast'", "remove"]),
    "misspelt key": ("job.yaml", "retries: 2", "retrys: 2", 0,
        ["unknown key 'reward.retrys'", "did you mean 'retries'"]),
    "unknown key in a plan": ("plan.yaml", "  sync: {", "  stream: true\n  sync: {", 0, ["unknown key 'job.stream'"]),
    "unknown key in a flow mapping": ("plan.yaml", "copies: 3", "copy: 3", 0,
        ["'job.rounds.long.issue.copy'", "'copies'"]),
    "unknown key at the top": ("job.yaml", "slo: {", "sla: {", 0, ["unknown key 'sla'", "did you mean 'slo'"]),
    "key without its unit": ("job.yaml", "deadline_s: 2.0", "deadline: 2", 0,
        ["wrong unit", "in seconds", "'deadline_s: 2'"]),
    "key in milliseconds": ("job.yaml", "deadline_s: 2.0", "deadline_ms: 2500", 0, ["wrong unit", "'deadline_s: 2.5'"]),
    "key in minutes": ("plan.yaml", "solve_s: 1.5", "solve_min: 1.5", 0, ["wrong unit", "'solve_s: 90'"]),
    "key in gigabytes": ("cluster.yaml", "host_memory_bytes: 24000000000", "host_memory_gb: 24", 0,
        ["wrong unit", "'host_memory_bytes: 24000000000'"]),
    "price of the wrong thing": ("cluster.yaml", "usd_per_node_hour: 0.1", "usd_per_hour: 0.1", 0,
        ["unknown key", "'usd_per_node_hour'"]),
    "value with a unit": ("job.yaml", "deadline_s: 2.0", "deadline_s: 2 min", 0, ["wrong unit", "write 120"]),
    "value with a unit and no space": ("job.yaml", "deadline_s: 2.0", "deadline_s: 1500ms", 0,
        ["wrong unit", "write 1.5"]),
    "bytes with a unit": ("cluster.yaml", "host_memory_bytes: 24000000000", "host_memory_bytes: 24GiB", 0,
        ["wrong unit", "write 25769803776"]),
    "bytes that are gigabytes": ("cluster.yaml", "host_memory_bytes: 24000000000", "host_memory_bytes: 24", 0,
        ["at least 1000000 bytes"]),
    "bytes in exponent form": ("cluster.yaml", "host_memory_bytes: 24000000000", "host_memory_bytes: 24e9", 0,
        ["whole number of bytes", "write 24000000000"]),
    "tokens with a unit": ("plan.yaml", "cutoff_tokens: 288", "cutoff_tokens: 4k", 0, ["wrong unit", "write 4000"]),
    "number in quotes": ("job.yaml", "retries: 2", 'retries: "2"', 0, ["whole number", "write 2"]),
    "text for a number": ("job.yaml", "retries: 2", "retries: many", 0, ["whole number, not 'many'", "repeated"]),
    "truth for a number": ("job.yaml", "retries: 2", "retries: true", 0, ["whole number, not true"]),
    "fraction for a count": ("job.yaml", "retries: 2", "retries: 2.5", 0, ["whole number, not 2.5"]),
    "nothing for a number": ("job.yaml", "retries: 2", "retries:", 0, ["whole number, not nothing"]),
    "number for a name": ("job.yaml", "name: keyhunt", "name: 7", 0, ["must be text, not 7", "quotes"]),
    "name with a space": ("job.yaml", "name: keyhunt", "name: key hunt", 0, ["'key hunt' is no name", "letters"]),
    "name with a space in a mapping": ("cluster.yaml", "  main:", "  'the main':", 0, ["is no name"]),
    "scalar for a mapping": ("job.yaml", "slo: {step_p95_s: null}", "slo: 5", 0, ["must be a mapping", "not 5"]),
    "scalar for a list": ("job.yaml", "tp: [1, 2]", "tp: 2", 0, ["must be a list, not 2", "write [2]"]),
    "empty text": ("cluster.yaml", "name: core", "name: ''", 0, ["must not be empty"]),
    "infinity": ("job.yaml", "deadline_s: 2.0", "deadline_s: .inf", 0, ["reward.deadline_s: must be"]),
    "not a number": ("job.yaml", "learning_rate: 1e-3", "learning_rate: .nan", 0, ["finite number"]),
    "integer beyond all bounds": ("job.yaml", "retries: 2", "retries: " + "9" * 500, 0, ["reward.retries"]),
    "choice misspelt": ("job.yaml", "name: grpo", "name: gpro", 0,
        ["'grpo', 'dr_grpo' or 'rloo'", "did you mean 'grpo'"]),
    "negative deadline": ("job.yaml", "deadline_s: 2.0", "deadline_s: -2.0", 0, ["more than 0 seconds, not -2.0"]),
    "deadline of a month": ("job.yaml", "deadline_s: 2.0", "deadline_s: 2592000", 0, ["at most 3600", "seconds"]),
    "one sample in a group": ("job.yaml", "samples_per_prompt: 8", "samples_per_prompt: 1", 0, ["at least 2, not 1"]),
    "greedy sampling": ("job.yaml", "temperature: 1.0", "temperature: 0", 0, ["more than 0", "temperature"]),
    "no prompts": ("job.yaml", "prompts_per_step: 16", "prompts_per_step: 0", 0, ["at least 1, not 0"]),
    "list out of order": ("job.yaml", "tp: [1, 2]", "tp: [2, 1, 2]", 0, ["ascending", "write [1, 2]"]),
    "list item": ("job.yaml", "tp: [1, 2]", "tp:\n    - 0\n    - 2", 1, ["search.tp.0", "at least 1"]),
    "empty list": ("job.yaml", "tp: [1, 2]", "tp: []", 0, ["search.tp: must have at least 1 item"]),
    "three betas": ("job.yaml", "  name: grpo", "  betas: [0.9, 0.95, 0.99]\n  name: grpo", 0,
        ["algorithm.betas: must have at most 2 item"]),
    "no function": ("job.yaml", '  function: "pkg.mod:score"\n', "", -1, ["kind function needs"]),
    "function without use": ("job.yaml", "kind: function", "kind: math", 1, ["function has no effect with kind math"]),
    "function of no form": ("job.yaml", '"pkg.mod:score"', "score", 0, ["'score'", "package.module:name"]),
    "micro-batches all too small": ("job.yaml", "[1024, 2048, 4096, 8192]", "[512, 1024]", 0,
        ["add a size of at least 1120"]),
    "version of the future": ("job.yaml", "rlplan_job: 1", "rlplan_job: 2", 0,
        ["rlplan_job: must be 1, not 2", "format"]),
    "no pools": ("cluster.yaml", "pools:\n  main:", "pools: {}\nx:\n  y:", 1, ["unknown key 'x'", "remove it"]),
    "more cores than cores": ("cluster.yaml", "per_node: 2", "per_node: 4", 0, ["a node has 2 cores", "at most 2"]),
    "missing key": ("job.yaml", "  deadline_s: 2.0\n", "", -5 + 1, ["missing key 'reward.deadline_s'", "add it"]),
    "digest of no form": ("plan.yaml", "path: job.yaml, sha256: ", "path: job.yaml, sha256: x", 0,
        ["inputs.job.sha256", "SHA-256"]),
    "absolute path": ("plan.yaml", "path: job.yaml", "path: /tmp/job.yaml", 0,
        ["inputs.job.path", "relative to the plan"]),
    "key given twice": ("job.yaml", "  workers: 1\n", "  workers: 1\n  workers: 2\n", 1, ["'workers' is given twice"]),
    "anchor": ("job.yaml", "tp: [1, 2]", "tp: &a [1, 2]\n  x: *a", 0, ["aliases are not taken"]),
    "tag": ("job.yaml", "retries: 2", "retries: !!python/int 2", 0, ["tags are not taken"]),
    "tab": ("job.yaml", "  retries: 2", "\tretries: 2", 0, ["not valid YAML"]),
    "control character": ("job.yaml", "retries: 2", "retries: \x07", 0, ["#x0007", "remove it"]),
    "two documents": ("job.yaml", "slo: {", "---\nslo: {", 0, ["not valid YAML", "another document"]),
    "list for a document key": ("job.yaml", "  retries: 2", "  [a, b]: 2", 0, ["a key must be"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_reported_at_its_line_with_its_remedy(folder: Any, case: str) -> None:
    name, old, new, offset, words = CASES[case]
    line = folder.edit(name, old, new) + offset
    with pytest.raises(InputError) as caught:
        LOADERS[name](folder.path(name))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{folder.path(name)}:"), text
    for word in words:
        assert word in text
    assert caught.value.line == line, text


@pytest.mark.parametrize("name", LOADERS)
def test_the_documents_are_sound_before_they_are_broken(folder: Any, name: str) -> None:
    LOADERS[name](folder.path(name))
    folder.check()


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_cut_off_at_any_line_is_refused_with_a_line(folder: Any, name: str) -> None:
    lines = folder.path(name).read_text().splitlines(keepends=True)
    last_required = len(lines) - (name == "job.yaml")  # slo, the last key of a job, may be left out
    for count in range(1, last_required):
        folder.path(name).write_text("".join(lines[:count]))
        with pytest.raises(InputError) as caught:
            LOADERS[name](folder.path(name))
        assert caught.value.line is not None and caught.value.line <= count, f"cut after line {count}: {caught.value}"


def test_a_plan_cut_off_before_its_last_brace_is_refused_wherever_that_is(folder: Any) -> None:
    whole = folder.path("plan.yaml").read_bytes()
    closing = whole.rindex(b"}")
    for size in [*range(0, closing, 17), closing]:
        folder.path("plan.yaml").write_bytes(whole[:size])
        with pytest.raises(InputError):
            load_plan(folder.path("plan.yaml"))


def test_a_file_cut_within_a_mapping_says_that_it_may_be_truncated(folder: Any) -> None:
    text = folder.path("plan.yaml").read_text()
    folder.path("plan.yaml").write_text(text[: text.index("copies")])
    with pytest.raises(InputError, match="may be truncated"):
        load_plan(folder.path("plan.yaml"))


def test_a_file_cut_between_sections_says_that_it_may_be_truncated(folder: Any) -> None:
    text = folder.path("plan.yaml").read_text()
    folder.path("plan.yaml").write_text(text[: text.index("predicted")])
    with pytest.raises(InputError, match=r"missing key 'predicted'.*may be truncated"):
        load_plan(folder.path("plan.yaml"))


def test_a_missing_file_is_named_without_a_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_plan(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path / 'none.yaml'}: no such file"
    assert caught.value.line is None


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load_job(tmp_path)


def test_bytes_that_are_no_text_are_named_with_their_line(folder: Any) -> None:
    folder.path("job.yaml").write_bytes(b"rlplan_job: 1\nname: \xff\n")
    with pytest.raises(InputError, match=":2: is not UTF-8 text"):
        load_job(folder.path("job.yaml"))


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "null\n", "- 1\n", "7\n"])
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError, match=r"is empty|must be a mapping"):
        load_job(tmp_path / "job.yaml")


def test_a_document_of_another_kind_is_called_that(folder: Any) -> None:
    with pytest.raises(
        InputError, match=r"cluster.yaml:1: is a cluster \('rlplan_cluster'\), and a job \('rlplan_job'\) is needed"
    ):
        load_job(folder.path("cluster.yaml"))


def test_a_hostile_depth_is_refused_and_does_not_crash(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a: " + "[" * 5000)
    with pytest.raises(InputError, match="nested deeper"):
        load_job(tmp_path / "job.yaml")


def test_a_wrong_unit_is_one_fault_and_not_an_unknown_key_and_a_missing_one(folder: Any) -> None:
    folder.edit("job.yaml", "deadline_s: 2.0", "deadline_ms: 2000")
    with pytest.raises(InputError, match=r"write 'deadline_s: 2'$"):
        load_job(folder.path("job.yaml"))


def test_all_faults_of_a_document_are_told_each_with_its_line(folder: Any) -> None:
    folder.edit("job.yaml", "retries: 2", "retries: two")
    folder.edit("job.yaml", "  workers: 1", "  workers: none")
    folder.edit("job.yaml", "  name: grpo", "  name: grop")
    with pytest.raises(InputError) as caught:
        load_job(folder.path("job.yaml"))
    told = caught.value.lines()
    assert [line.split(": ")[1].split(": ")[0] for line in told] == [
        "reward.workers",
        "reward.retries",
        "algorithm.name",
    ]
    numbers = [int(line.split(": ")[0].rpartition(":")[2]) for line in told]
    assert numbers == sorted(numbers) and len(set(numbers)) == 3
    assert not any("more" in line for line in told)


MODES = {
    "exact without a cutoff": ("cutoff_tokens: 288", "cutoff_tokens: null", "mode exact needs cutoff_tokens"),
    "cutoff in a race": (
        "{mode: exact, budget",
        "{mode: race, budget",
        "cutoff_tokens belongs to mode exact; write null",
    ),
    "too few prompts": ("prompts: 20", "prompts: 15", "at least 16 prompts"),
    "too few samples": ("{prompts: 20, samples: 8}", "{prompts: 20, samples: 7}", "exactly 8 samples"),
    "over-issued samples in exact": ("{prompts: 20, samples: 8}", "{prompts: 20, samples: 9}", "exactly 8 samples"),
    "long round of another size": ("prompts: 16, samples", "prompts: 15, samples", "a long round trains 16 prompts"),
    "long group of another size": ("16, samples: 8", "16, samples: 4", "a long round trains 8 samples per prompt"),
}


@pytest.mark.parametrize("case", MODES)
def test_rounds_that_contradict_the_mode_are_refused_at_their_line(folder: Any, case: str) -> None:
    old, new, words = MODES[case]
    line = folder.edit("plan.yaml", old, new)
    with pytest.raises(InputError) as caught:
        load_plan(folder.path("plan.yaml"))
    assert words in str(caught.value)
    if "mode" not in old:  # there the fault stands at the key that the mode forbids
        assert caught.value.line == line


def test_a_mode_that_defers_needs_a_long_round(folder: Any) -> None:
    plan = folder.path("plan.yaml")
    text = plan.read_text()
    start, end = text.index("    long:\n"), text.index("  reward: {workers")
    plan.write_text(text[:start] + "    long: null\n" + text[end:])
    with pytest.raises(InputError, match=r"add the section rounds\.long") as caught:
        load_plan(plan)
    assert caught.value.line == text[:start].count("\n") + 1


PREDICT = {
    "{mode: exact, budget": "{mode: predict, budget",
    "prompts: 20": "prompts: 16",
    "cutoff_tokens: 288": "cutoff_tokens: null",
    "long_share: null": "long_share: 0.25",
    "copies: 3": "copies: 1",
}
PREDICT_FAULTS = {
    "over-issue": ("prompts: 16, samples: 8}", "prompts: 17, samples: 8}", "issues exactly 16 prompts"),
    "a cutoff": ("cutoff_tokens: null", "cutoff_tokens: 288", "cutoff_tokens belongs to mode exact"),
    "no share": ("long_share: 0.25", "long_share: null", "mode predict needs long_share, between 0 and 1"),
    "all of them": ("long_share: 0.25", "long_share: 1.0", "less than 1"),
    "none of them": ("long_share: 0.25", "long_share: 0.0", "must be more than 0"),
    "copies": ("copies: 1", "copies: 2", "copies belongs to mode exact"),
    "another mode's plan": ("{mode: predict, budget", "{mode: defer, budget", "long_share belongs to mode predict"),
}


@pytest.mark.parametrize("case", [None, *PREDICT_FAULTS])
def test_mode_predict_has_a_share_and_a_long_round_and_nothing_in_excess(folder: Any, case: str | None) -> None:
    for old, new in PREDICT.items():
        folder.edit("plan.yaml", old, new)
    if case is None:
        plan = load_plan(folder.path("plan.yaml"))
        assert plan.job.rounds.short.long_share == 0.25
        assert plan.job.round_numbers()["long_share"] == 0.25
        return
    old, new, words = PREDICT_FAULTS[case]
    folder.edit("plan.yaml", old, new)
    with pytest.raises(InputError) as caught:
        load_plan(folder.path("plan.yaml"))
    assert words in str(caught.value)


def test_mode_sync_has_no_long_round_and_issues_nothing_in_excess(folder: Any) -> None:
    folder.edit("plan.yaml", "{mode: exact, budget", "{mode: sync, budget")
    folder.edit("plan.yaml", "cutoff_tokens: 288", "cutoff_tokens: null")
    with pytest.raises(InputError, match="mode sync issues exactly 16 prompts"):
        load_plan(folder.path("plan.yaml"))
    folder.edit("plan.yaml", "prompts: 20", "prompts: 16")
    with pytest.raises(InputError, match="write long: null"):
        load_plan(folder.path("plan.yaml"))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mangled_file_is_read_or_refused_in_one_line_and_never_crashes(folder: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(LOADERS)))
    text = folder.path(name).read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    middle = data.draw(st.text(st.sampled_from("\n :-[]{},&*!|>'\"#%@?~0123456789.eE_abz\t\\é\x07<="), max_size=6))
    mangled = folder.path("mangled.yaml")
    mangled.write_text(text[:start] + middle + text[end:])
    try:
        LOADERS[name](mangled)
    except InputError as error:
        assert str(error).startswith(f"{mangled}:") and "\n" not in str(error)
