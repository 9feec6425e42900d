"""Pages of the documents: each key with its type, default, unit and meaning, made from the documents' models."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

import rlplan
from rlplan.cli.schema import mark_of, model_of
from rlplan.plans.yaml.fault_lines import NAME_PATTERN
from rlplan.profiles.length_trace import LengthLine

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"

DOCUMENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cluster": ("the machines that a job may use", ("math-32b/cluster.yaml", "groups/cluster.yaml")),
    "job": ("what is trained, on what data, by which algorithm", ("math-32b/job.yaml", "cpu-demo/job.yaml")),
    "profile": ("what each phase of a job costs", ("math-32b/profile.yaml",)),
    "lengths": ("one line of a length trace: one response", ()),
    "plan": ("the schedule of one job: decisions, predictions and reasons", ("math-32b.yaml",)),
    "workload": ("many jobs that may share nodes", ("groups/workload.yaml",)),
    "groups": ("which jobs share which nodes", ("groups.yaml",)),
    "policy": ("a team's own rules for `rlplan check`", ()),
}
"""Each document: what it holds, and the shipped examples of it."""

FILES = {"lengths": "lengths.jsonl", "policy": "rlplan.policy.yaml"}
"""The usual file name of a document where it is not `NAME.yaml`."""

UNITS = {"s": "seconds", "bytes": "bytes", "tokens": "tokens", "days": "days", "usd": "USD"}
"""The unit that the end of a key's name states."""


class Section(NamedTuple):
    """A mapping inside a document.

    Attributes:
        schema: its JSON Schema.
        paths: every dotted path at which it stands; empty text for the document itself, `NAME` for a free key.
    """

    schema: Mapping[str, Any]
    paths: list[str]


def model_of_page(name: str) -> type[BaseModel]:
    """The pydantic model of a document."""
    return LengthLine if name == "lengths" else model_of(name)


def sections(model: type[BaseModel]) -> dict[str, Section]:
    """All mappings of a document by the name of their definition, in the order of their first path."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    by_definition: dict[str, Section] = {}

    def visit(name: str, node: Mapping[str, Any], path: str) -> None:
        section = by_definition.setdefault(name, Section(node, []))
        section.paths.append(path)
        for key, value in node.get("properties", {}).items():
            for target, suffix in references(value):
                visit(target, definitions[target], f"{path}.{key}{suffix}".lstrip("."))

    visit("", schema, "")
    return by_definition


def references(node: Any, suffix: str = "") -> Iterator[tuple[str, str]]:
    """The definitions that a value refers to, each with the end of its path after the key: `.NAME` in a mapping of free
    keys, `[]` in a list."""
    if not isinstance(node, Mapping):
        return
    if "$ref" in node:
        yield node["$ref"].rpartition("/")[2], suffix
    for branch in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from references(branch, suffix)
    for value in (node.get("additionalProperties"), *node.get("patternProperties", {}).values()):
        yield from references(value, f"{suffix}.NAME")
    for value in (node.get("items"), *node.get("prefixItems", ())):
        yield from references(value, f"{suffix}[]")


def anchor(path: str) -> str:
    """The anchor of the section at a path, the same in every build."""
    return "section-" + re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def plain(text: str) -> str:
    """Text of a docstring as Markdown for one cell of a table: marks outside of backticks are escaped."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(code(p[1:-1]) if p.startswith("`") else re.sub(r"([*_<\[|\\])", r"\\\1", p) for p in pieces)


def code(text: object) -> str:
    """Text as code that may stand in a table. Markdown looks into the tag, so `](` would be a link."""
    escaped = html.escape(str(text), quote=False).replace("|", "&#124;").replace("[", "&#91;")
    return f"<code>{escaped}</code>"


def type_of(node: Mapping[str, Any], anchors: Mapping[str, str]) -> str:
    """The type of a value as text, with links to the sections."""
    if "$ref" in node:
        return f"[section](#{anchors[node['$ref'].rpartition('/')[2]]})"
    for key in ("anyOf", "oneOf"):
        if key in node:
            return " or ".join(dict.fromkeys(type_of(branch, anchors) for branch in node[key]))
    if "const" in node:
        return code(json.dumps(node["const"]))
    if "enum" in node:
        return ", ".join(code(value) for value in node["enum"])
    kind = node.get("type")
    if kind == "array":
        if "prefixItems" in node:
            items = ", ".join(type_of(item, anchors) for item in node["prefixItems"])
            return f"list of {len(node['prefixItems'])}: {items}"
        size = f", at least {node['minItems']}" if node.get("minItems") else ""
        return f"list of {type_of(node['items'], anchors)}{size}"
    if kind == "object":
        values = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
        inside = next(
            (type_of(value, anchors) for value in values if isinstance(value, Mapping) and value), "any value"
        )
        return f"mapping of names to {inside}"
    if kind == "string":
        return text_type(node)
    return {"integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}.get(
        kind or "", "any value"
    ) + limits(node)


def text_type(node: Mapping[str, Any]) -> str:
    """The type of a text value: a name, a digest, or text of a stated form."""
    pattern = node.get("pattern", "")
    if pattern == NAME_PATTERN:
        return "name"
    digits = re.fullmatch(r"\^\[0-9a-f\]\{(\d+)\}\$", pattern)
    if digits:
        return f"{digits[1]} hexadecimal digits"
    return f"text of the form {code(pattern)}" if pattern else "text"


def limits(node: Mapping[str, Any]) -> str:
    """The range of a number as text; empty if it has none."""
    if "minimum" in node and "maximum" in node:
        return f", {number(node['minimum'])} to {number(node['maximum'])}"
    phrases = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return "".join(f", {phrase} {number(node[key])}" for key, phrase in phrases.items() if key in node)


def number(value: float) -> str:
    """A limit as text: a large power of ten as a power, any other number with commas."""
    power = round(math.log10(abs(value))) if value else 0
    return f"10<sup>{power}</sup>" if power > 6 and value == 10**power else f"{value:,}".removesuffix(".0")


def unit_of(key: str) -> str:
    """The unit that a key's name states, as in `usd_per_node_hour`; empty if it states none."""
    match = re.search(rf"(?:^|_)({'|'.join(UNITS)})(?:_per_(\w+))?$", key)
    if match is None:
        return ""
    per = {"s": "second"}.get(match[2], (match[2] or "").replace("_", " ").replace("kv", "KV").replace("gpu", "GPU"))
    return UNITS[match[1]] + (f" per {per}" if per else "")


def default_of(node: Mapping[str, Any], required: bool) -> str:
    """The default of a key as text, or `required`."""
    if required:
        return "required"
    return code(json.dumps(node["default"])) if "default" in node else "see meaning"


def section_page(section: Section, anchors: Mapping[str, str], definitions: Mapping[str, Any]) -> list[str]:
    """Markdown of one mapping: its heading, its other paths, and a row for each key."""
    schema = section.schema
    lines = []
    if section.paths[0]:
        lines += [f"## `{section.paths[0]}` {{#{anchor(section.paths[0])}}}", ""]
        lines += [plain(schema.get("description", "")), ""]
        others = section.paths[1:]
        if others:
            lines += [f"The same keys stand at {', '.join(code(path) for path in others)}.", ""]
    keys = schema.get("properties", {})
    has_units = any(unit_of(key) for key in keys)
    columns = ("key", "type", "default", *(["unit"] if has_units else []), "meaning")
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for key, node in keys.items():
        meaning = node.get("description") or next(
            (definitions[name].get("description", "") for name, _ in references(node)), ""
        )
        default = default_of(node, key in schema.get("required", ()))
        unit = [unit_of(key)] if has_units else []
        cells = (code(key), type_of(node, anchors), default, *unit, plain(meaning.rstrip(".") + "."))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def document_page(name: str) -> str:
    """Markdown of one document's page: every key with type, default, unit and meaning, then shipped examples."""
    model = model_of_page(name)
    summary, examples = DOCUMENTS[name]
    by_definition = sections(model)
    anchors = {definition: anchor(section.paths[0]) for definition, section in by_definition.items()}
    file = FILES.get(name, f"{name}.yaml")
    lines = [f"# {file}", "", f"This document holds {summary}.", ""]
    if name != "lengths":
        lines += [f"Its first key is {code(f'{mark_of(name)}: 1')}. Unknown keys are an error.", ""]
    lines += [f"`rlplan schema {name}` prints the JSON Schema that this page is made from.", ""]
    definitions = model.model_json_schema().get("$defs", {})
    for section in by_definition.values():
        lines += section_page(section, anchors, definitions)
    for path in examples:
        text = (EXAMPLES / path).read_text(encoding="utf-8").rstrip()
        lines += [f"## Example: {path} {{#example-{path.replace('/', '-').replace('.', '-')}}}", ""]
        lines += [f"It ships in `plans/examples/{path}`.", "", "```yaml", text, "```", ""]
    return "\n".join(lines)
