"""Each thing that a user can get wrong gives one line with file, line number and remedy.

golden/bad-*.txt have a pair of texts for each: what is replaced in a sound document and by what; below it what is told.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.schema.workload import Workload, load_workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ..documents import CLUSTER
from ..golden import cases_in, compact, same_as_golden
from ..workloads import LAB, WORKLOAD
from .conftest import JOB, PLAN_TEXT

LOADERS = {
    "cluster.yaml": load_cluster, "job.yaml": load_job, "plan.yaml": load_plan,
}  # fmt: skip
GPUS = CLUSTER.replace("cpu, name: core", "cuda, name: H100").replace("usd_per_node_hour: 0.1", "usd_per_gpu_hour: 2.5")
LIST = """\
reward:
  - {kind: format, pattern: 'a|b', deadline_s: 1.0, weight: 0.1}
  - {kind: math, name: right, deadline_s: 2.0, workers: 3}
  - {kind: length, target_tokens: 100, per_token: 0.001}
  - {kind: overlong, cache_tokens: 256, weight: 0.5}
  - {kind: judge, model: m/m, prompt: "Is {response} right?", scale: [0, 4], deadline_s: 5.0}
"""
SEVERAL = JOB[: JOB.index("reward:\n")] + LIST + JOB[JOB.index("rollout:\n") :]
PREDICT = PLAN_TEXT.replace("mode: exact", "mode: predict").replace("prompts: 20", "prompts: 16")
PREDICT = PREDICT.replace("cutoff_tokens: 288", "cutoff_tokens: null").replace("copies: 3", "copies: 1")
PREDICT = PREDICT.replace("long_share: null", "long_share: 0.25")
TEXTS = {
    "cluster.yaml": CLUSTER, "gpus.yaml": GPUS, "job.yaml": JOB, "list.yaml": SEVERAL, "plan.yaml": PLAN_TEXT,
    "predict.yaml": PREDICT, "workload.yaml": WORKLOAD, "lab.yaml": LAB,
}  # fmt: skip
MODELS = {"plan": Plan, "predict": Plan, "job": Job, "list": Job}


@pytest.mark.parametrize("name", TEXTS)
def test_a_fault_is_told_at_its_line_with_its_remedy(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(LAB)

    def read(text):
        if name != "workload.yaml":
            return loads(text, MODELS.get(name.removesuffix(".yaml"), Cluster), name)
        Path(name).write_text(text)
        return load_workload(Path(name))

    read(TEXTS[name])
    file, lines = Path(__file__).with_name("golden") / f"bad-{name.removesuffix('.yaml')}.txt", []
    for old, new in cases_in(file):
        assert TEXTS[name].count(old) == 1, old
        with pytest.raises(InputError) as caught:
            read(TEXTS[name].replace(old, new))
        lines += [compact([old, new]), *(f"  {line}" for line in caught.value.lines())]
    assert len(lines) >= 10
    same_as_golden(lines, file)


def test_a_sound_workload_is_read_with_its_cluster(tmp_path):
    (tmp_path / "cluster.yaml").write_text(LAB)
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    workload, cluster = load_workload(tmp_path / "workload.yaml")
    assert sorted(workload.jobs) == ["big", "small"] and cluster == load_cluster(tmp_path / "cluster.yaml")
    assert loads(dump(workload), Workload) == workload


def test_a_mode_may_predict_long_prompts_by_their_share():
    plan = loads(PREDICT, Plan)
    assert plan.job.rounds.short.long_share == plan.job.round_spec(48).long_share == 0.25


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_cut_off_at_any_line_is_refused_with_a_line(folder, name):
    lines = folder.path(name).read_text().splitlines(keepends=True)
    last_required = len(lines) - (name == "job.yaml")  # slo, the last key of a job, may be left out
    for count in range(1, last_required, 3):
        folder.path(name).write_text("".join(lines[:count]))
        with pytest.raises(InputError) as caught:
            LOADERS[name](folder.path(name))
        assert caught.value.line is not None and caught.value.line <= count, f"cut after line {count}: {caught.value}"


@pytest.mark.parametrize("before", ["copies", "predicted", "}\n"])
def test_a_plan_cut_off_within_or_between_sections_may_be_truncated(before):
    with pytest.raises(InputError, match="may be truncated"):
        loads(PLAN_TEXT[: PLAN_TEXT.rindex(before)], Plan)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "x.yaml: no such file"), (b"rlplan_job: 1\nname: \xff\n", ":2: is not UTF-8 text"),
        (b"a: " + b"[" * 5000, "nested deeper"), (CLUSTER.encode(), r":1: is a cluster .*, and a job .* is needed"),
        *((text, "is empty|must be a mapping") for text in (b"", b"\n", b"# only a comment\n", b"null\n", b"- 1\n",
        b"7\n")),
    ],
)  # fmt: skip
def test_a_file_that_is_no_job_is_refused_as_what_it_is(content, message, tmp_path):
    if content is not None:
        (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_job(tmp_path / "x.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'x.yaml'}:")
    with pytest.raises(InputError, match="is a folder"):
        load_job(tmp_path)


def mangled(data, home):
    """Some characters of a document are others: it is read, or refused in one line."""
    name = data.draw(st.sampled_from(sorted(LOADERS)))
    text = TEXTS[name]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    middle = data.draw(st.text(st.sampled_from("\n :-[]{},&*!|>'\"#%@?~0123456789.eE_abz\t\\é\x07<="), max_size=6))
    file = home / "mangled.yaml"
    file.write_text(text[:start] + middle + text[end:])
    try:
        LOADERS[name](file)
    except InputError as error:
        assert str(error).startswith(f"{file}:") and "\n" not in str(error)


def test_a_mangled_file_is_read_or_refused_in_one_line(tmp_path):
    settings(deadline=None, max_examples=20)(given(st.data())(lambda data: mangled(data, tmp_path)))()


@pytest.mark.search
def test_many_mangled_files_are_read_or_refused_in_one_line(tmp_path):
    settings(deadline=None, max_examples=300)(given(st.data())(lambda data: mangled(data, tmp_path)))()


@pytest.mark.parametrize("sizes", ["[0]", "['1']", "[1.0]"])
def test_a_wrong_item_does_not_make_its_list_too_short(sizes: str) -> None:
    with pytest.raises(InputError) as raised:
        loads(JOB.replace("tp: [1, 2]", f"tp: {sizes}"), Job)
    assert [error.message.partition(":")[0] for error in raised.value.each()] == ["search.tp.0"]
