"""The documentation: its reference holds every key and every option, its commands parse, its links lead somewhere."""

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml

import rlplan
from rlplan.cli.main import cli
from rlplan.cli.schema import KINDS
from rlplan.plans.check.rules import RULES
from rlplan.plans.facts.executable import SAME_IN_BOTH_KINDS, UPDATE_VALUES, unsupported
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import loads
from rlplan.profiles.document_models import ALL_MODELS
from rlplan.profiles.reward_tables import reward_table

from ..plans.conftest import models_below
from ..plans.page.conftest import browser  # noqa: F401 (a fixture)

ROOT = Path(rlplan.__file__).parent
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOT_CONTEXT = click.Context(cli, info_name="rlplan")
COMMANDS = {name: cli.get_command(ROOT_CONTEXT, name) for name in cli.list_commands(ROOT_CONTEXT)}


def adjacent_module(name):
    """A module of docs/, which is no package; MkDocs imports its hook and what lies beside it in the same way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


REFERENCE = adjacent_module("reference")
DOCUMENT_PAGES = adjacent_module("document_pages")


def rows(page):
    """The cells of each row of a page's tables, without their heads."""
    cells = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| <code>")]
    return [[cell.strip() for cell in row] for row in cells]


@pytest.mark.parametrize("name", DOCUMENT_PAGES.DOCUMENTS)
def test_the_page_of_a_document_says_what_every_key_means(name):
    assert set(DOCUMENT_PAGES.DOCUMENTS) == {*KINDS, "lengths"}
    keys = Counter(key for model in models_below(DOCUMENT_PAGES.model_of_page(name)) for key in model.model_fields)
    page = rows(DOCUMENT_PAGES.document_page(name))
    assert Counter(row[0] for row in page) == {f"<code>{key}</code>": count for key, count in keys.items()}
    assert [row[0] for row in page if not all((row[1], row[2], row[-1]))] == []


def test_the_page_of_the_commands_has_every_option_example_and_exit_code():
    page = REFERENCE.commands_page()
    for name, command in COMMANDS.items():
        section = page.partition(f"## rlplan {name} ")[2].partition("\n## ")[0]
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert len(rows(section)) == len(options), name
        for option in options:
            assert all(f"<code>{text}</code>" in section for text in option.opts), (name, option.opts)
        assert "Exit codes: 0" in section and f"rlplan {name}" in section.partition("Examples:")[2]
    assert "Sentinel" not in page


def test_the_page_of_the_rules_has_every_rule():
    assert [row[0] for row in rows(REFERENCE.rules_page())] == [f"<code>{name}</code>" for name in RULES]


def command_lines():
    """By file and line: each line of a code block in the prose that calls rlplan."""
    found = {}
    for path in PROSE:
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            fenced ^= line.startswith("```")
            if fenced and line.startswith("rlplan "):
                found[f"{path.relative_to(ROOT)}:{number}"] = line
    return found


@pytest.mark.parametrize("line", command_lines().values(), ids=command_lines())
def test_every_command_in_the_prose_parses(line):
    words = shlex.split(line.partition(" > ")[0], comments=True)
    assert COMMANDS[words[1]].make_context(words[1], words[2:]).params is not None


def test_every_relative_link_of_the_repository_leads_to_a_file():
    ours = [path for path in ROOT.rglob("*.md") if not {"build", "runs"} & set(path.relative_to(ROOT).parts[:1])]
    pages = [path for path in ours if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    dead, seen = [], 0
    for path in pages:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
            seen += ":" not in link
            if ":" not in link and not (path.parent / link).exists():
                dead.append(f"{path.relative_to(ROOT)}: {link}")
    assert seen > 100 and dead == []


def test_the_site_has_a_made_page_where_the_repository_has_its_source():
    assert set(REFERENCE.MADE_FROM.values()) == {*REFERENCE.PAGES} - {"reference/commands.md"}
    assert [path for path in REFERENCE.MADE_FROM if not (ROOT / path).is_file()] == []
    page = SimpleNamespace(file=SimpleNamespace(src_uri="ci/README.md"))
    text = "[a](../../plans/check/rules.py), [b](../../plans/schemas/job.schema.json), [c](review.sh), [d](https://x/y)"
    made = "[a](../reference/rules.md), [b](../reference/job.md), [c](review.sh), [d](https://x/y)"
    assert REFERENCE.on_page_markdown(text, page, None, None) == made


def test_no_page_and_no_recipe_installs_a_name_that_no_index_has():
    files = [
        *PROSE,
        *(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".yml", ".yaml", ".sh", ".sbatch")),
    ]
    installs = [
        (path.name, word.strip("'\"`();,")) for path in [*files, ROOT / "docs" / "cluster" / "Dockerfile"]
        for rest in re.findall(r"(?:pip|uv) install([^\n`#]*(?:\n\s+'[^\n`#]*)?)", path.read_text(encoding="utf-8"))
        for word in rest.split()
    ]  # fmt: skip
    assert len(installs) > 8 and [pair for pair in installs if re.match(r"rlplan\b(?!/)", pair[1])] == []


def test_pages_say_how_many_programs_hang_as_the_table_does():
    share = f"{reward_table('code').hanging:.0%} of the wrong"
    for name in ("planning", "lengths", "three-jobs"):
        assert share in " ".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split()), name


@pytest.mark.search
def test_pages_opened_as_files_search_without_a_network(browser, tmp_path):  # noqa: F811 (the fixture)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for name in ("index.html", "cluster/slurm.html"):
        page, asked = browser.new_context(offline=True).new_page(), []
        page.on("request", lambda request: asked.append(request.url))  # noqa: B023 (the page's own list)
        page.goto((tmp_path / name).as_uri())
        page.click("input.md-search__input")
        page.keyboard.type("overlong")
        page.wait_for_selector(".md-search-result__item")
        assert "job.html" in page.inner_html(".md-search-result__list")
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("path", PROSE, ids=[path.relative_to(ROOT).as_posix() for path in PROSE])
def test_every_document_in_the_prose_is_valid(path):
    for text in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        if re.search(r"^rlplan\w*:", text, re.MULTILINE):
            loads(text, ALL_MODELS[next(key for key in yaml.safe_load(text) if key in ALL_MODELS)])


def test_every_file_and_benchmark_that_the_prose_names_exists():
    rooms = "api|benchmarks|cli|docs|executor|planner|plans|profiles|rounds|tests|traces"
    text = "\n".join(path.read_text(encoding="utf-8") for path in PROSE if path.name != "CONTRIBUTING.md")
    named = set(re.findall(rf"`((?:{rooms})/[\w./-]+)`", text))
    assert len(named) > 5 and [name for name in named if not (ROOT / name).exists()] == []
    benchmarks = set(re.findall(r"-m benchmarks\.([a-z]\w*)", text))
    table = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    benchmarks |= set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))
    assert len(benchmarks) > 10
    assert [name for name in benchmarks if importlib.util.find_spec(f"rlplan.benchmarks.{name}") is None] == []


def test_the_cluster_page_quotes_what_execute_refuses():
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    plan = load_plan(ROOT / "plans" / "examples" / "math-32b.yaml")
    planned = plan.job
    pipeline = planned.rounds.short.train.model_copy(update={"dp": 1, "tp": 8, "pp": 8})
    kinds = {name: kind.model_copy(update={"train": pipeline}) for name, kind in planned.rounds if kind is not None}
    edited = planned.model_copy(update={"rounds": planned.rounds.model_copy(update=kinds)})
    for_any = plan.solver.model_copy(update={"for_any": True})
    faults = list(unsupported(plan.model_copy(update={"job": edited, "solver": for_any}), None))
    assert len(faults) == 2
    for loc, what, remedy in faults:
        assert f"{'.'.join(map(str, loc))}: {what}; {remedy}" in page
    limited = {key for key, values in UPDATE_VALUES.items() if key != "offload" or len(values) == 1}
    for key in (*limited, *SAME_IN_BOTH_KINDS, "judge", "synchronous"):
        assert re.search(rf"^\|.*`[\w.*]*\b{key}`", page, re.MULTILINE), key


def test_the_page_of_many_jobs_has_the_figures_of_the_shipped_groups():
    page = (ROOT / "docs" / "many-jobs.md").read_text(encoding="utf-8")
    plan = load_groups_plan(ROOT / "plans" / "examples" / "groups.yaml")
    for cost in (plan.predicted.plan, plan.predicted.algorithm_1, plan.predicted.solo_d):
        assert f"{cost.usd_per_hour:.2f} USD/h  {cost.usd_per_unit:.3f} USD/unit" in page
    for group in plan.groups.values():
        for name, member in group.jobs.items():
            slowdown = member.slowdown
            assert f"{name}: slowdown {slowdown.mean:.3f}x (p50 {slowdown.p50:.3f}x, p95 {slowdown.p95:.3f}x)" in page


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(config["nav"])))
    assert named == pages | set(REFERENCE.PAGES)
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
