"""A MkDocs hook: writes the pages of `reference/` at build time from the documents' models, the commands and the rules.

Nothing of these pages is committed, so that no page can differ from the code. `PAGES` maps each page's path to the
function that returns its Markdown; tests/docs/test_docs.py holds every key and every option against it. Committed pages
link to what these are made from (`MADE_FROM`), so that a link leads somewhere also in a view of the repository; the
site has the page in its place. Pages that are opened as files search by a script of ours, and not by one of a network.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
from document_pages import DOCUMENTS, FILES, code, document_page, limits, plain
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from rlplan.cli.main import PAGES as MANUAL
from rlplan.cli.main import cli
from rlplan.cli.schema import KINDS
from rlplan.plans.check.rules import RULES


def help_text(command: click.Command) -> list[str]:
    """The paragraphs of a command's help as Markdown; a paragraph after a backspace mark keeps its lines."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            lines += ["```", *paragraph.splitlines()[1:], "```", ""]
        else:
            lines += [plain(paragraph), ""]
    return lines


def option_row(option: click.Option, context: click.Context) -> str:
    """A table's row for one option: names, values, default, meaning."""
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        value = ""
    elif isinstance(option.type, click.Choice):
        value = ", ".join(code(choice) for choice in option.type.choices)
    elif isinstance(option.type, click.IntRange | click.FloatRange):
        numbers, kind = option.type, "integer" if isinstance(option.type, click.IntRange) else "number"
        low, high = ("exclusiveM" if numbers.min_open else "m", "exclusiveM" if numbers.max_open else "m")
        ends = {f"{low}inimum": numbers.min, f"{high}aximum": numbers.max}
        value = kind + limits({key: end for key, end in ends.items() if end is not None})
    else:
        value = code(option.make_metavar(context))
    default = option.to_info_dict()["default"]
    shown = "" if option.is_flag or default is None else code(default)
    return f"| {names} | {value} | {shown} | {plain(option.help or '')} |"


def commands_page() -> str:
    """Markdown of the commands' page: usage, help, options, examples and exit codes of each."""
    root = click.Context(cli, info_name="rlplan")
    lines = ["# Commands", "", "| command | what it does |", "|---|---|"]
    names = cli.list_commands(root)
    for name in names:
        summary = cli.get_command(root, name).get_short_help_str(limit=200)  # type: ignore[union-attr]
        lines.append(f"| [`rlplan {name}`](#{name}) | {plain(summary)} |")
    lines += ["", "Every command takes `-h` or `--help`. `rlplan --version` prints the version.", ""]
    for name in names:
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## rlplan {name} {{#{name}}}", "", "```", f"rlplan {name} {usage}", "```", "", *help_text(command)]
        options = [p for p in command.params if isinstance(p, click.Option)]
        if options:
            lines += ["| option | value | default | meaning |", "|---|---|---|---|"]
            lines += [*(option_row(option, context) for option in options), ""]
        manual = MANUAL[name]
        lines += ["Examples:", "", "```bash"]
        for meaning, line in manual.examples:
            lines += [f"# {meaning}", line]
        lines += [
            "```",
            "",
            f"Exit codes: {plain(manual.exits)}, 2 bad input (a line for each fault, nothing written).",
            "",
        ]
        if manual.see_also:
            links = ", ".join(f"[`rlplan {other}`](#{other})" for other in manual.see_also)
            lines += [f"See also: {links}.", ""]
    return "\n".join(lines)


def rules_page() -> str:
    """Markdown of the rules of `rlplan check`, by family."""
    lines = [
        "# Rules of rlplan check",
        "",
        "`rlplan check --rules` prints the same list. Warnings and notes keep exit code 0.",
        "",
    ]
    for family in dict.fromkeys(rule.family for rule in RULES.values()):
        lines += [f"## {family}", "", "| rule | what it finds | exit code |", "|---|---|---|"]
        for rule in (rule for rule in RULES.values() if rule.family == family):
            exit_code = "2" if rule.bad_input else "0, a warning" if rule.warning else "1"
            lines.append(f"| {code(rule.name)} | {plain(rule.finds)} | {exit_code} |")
        lines.append("")
    return "\n".join(lines)


def index_page() -> str:
    """Markdown of the reference's first page."""
    lines = [
        "# Reference",
        "",
        "Every build of this site makes these pages from the code: keys from the documents' models,",
    ]
    lines += ["options from the commands, rules from `rlplan check`.", "", "| page | holds |", "|---|---|"]
    for name in DOCUMENTS:
        lines.append(f"| [{FILES.get(name, f'{name}.yaml')}]({name}.md) | {DOCUMENTS[name][0]} |")
    lines.append("| [trace.jsonl](../trace.md) | what a run writes: one event on each line |")
    lines.append("| [Commands](commands.md) | every command: options, examples, exit codes |")
    lines.append("| [Rules](rules.md) | every rule of `rlplan check` |")
    return "\n".join([*lines, ""])


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/index.md": index_page,
    **{f"reference/{name}.md": partial(document_page, name) for name in DOCUMENTS},
    "reference/commands.md": commands_page,
    "reference/rules.md": rules_page,
}


MADE_FROM = {
    "cli/main.py": "reference/index.md",
    "plans/check/rules.py": "reference/rules.md",
    "profiles/length_trace.py": "reference/lengths.md",
    **{f"plans/schemas/{name}.schema.json": f"reference/{name}.md" for name in DOCUMENTS if name != "lengths"},
}
"""By a file of the repository, the page that is made of it, or that says the same."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link to generated pages in place of what they are made from; MkDocs calls this for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        made = MADE_FROM.get(path)
        return match[0] if made is None else f"]({posixpath.relpath(made, folder or '.')})"

    return re.sub(r"\]\(([^)#:]+)\)", target, markdown)


SHIM, SCRIPT = "https://unpkg.com/iframe-worker/shim", "worker_in_frame.js"
"""The script of a network that the theme's plugin `offline` takes for search in files, and ours."""


def on_post_build(config: MkDocsConfig) -> None:
    """Take the script of these pages in its place; MkDocs calls this when all pages are written."""
    site = Path(config.site_dir)
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        own = posixpath.relpath(SCRIPT, path.parent.relative_to(site).as_posix())
        path.write_text(text.replace(SHIM, own), encoding="utf-8")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; MkDocs calls this once it has listed the committed ones."""
    assert set(DOCUMENTS) == {*KINDS, "lengths"}, "a document without a page"
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files
