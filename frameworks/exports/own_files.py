"""Files that several exports share: the job's reward as a function, and its rows as a framework reads them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...plans.schema.reward_spec import WORKER_KINDS, RewardSpec
from .draft import ExportSource

_SHAPES = {
    "trl": """

def reward(prompts, completions, answer, **_):
    \"\"\"Rewards of a batch, as TRL asks for them.\"\"\"
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [score(prompt, text, json.loads(row)) for prompt, text, row in zip(prompts, texts, answer, strict=True)]
""",
    "verl": """

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    \"\"\"The reward of a response, as verl asks for it.\"\"\"
    return score((extra_info or {}).get("prompt", ""), solution_str, json.loads(ground_truth))
""",
    "slime": """

async def score_sample(args, sample, **_):
    \"\"\"The reward of a sample, as slime asks for it.\"\"\"
    return score(sample.prompt, sample.response, sample.label)
""",
    "openrlhf": """

def reward_func(queries, prompts, labels, **_):
    \"\"\"Rewards of a batch, as OpenRLHF asks for them: responses follow their prompts in `queries`.\"\"\"
    pairs = zip(queries, prompts, labels, strict=True)
    return [score(prompt, query[len(prompt) :], json.loads(label)) for query, prompt, label in pairs]
""",
}


def reward_file(source: ExportSource, framework: str) -> str:
    """reward.py: the weighted sum of the job's parts that reward workers compute, in the framework's signature."""
    parts = [part for part in source.job.reward.parts if part.kind in WORKER_KINDS]
    lines = "".join(f"    ({part.weight!r}, {_config(part, source)}),\n" for part in parts)
    return f'''"""The reward of {source.job.name}, by rlplan's own functions."""

import json
from pathlib import Path

from rlplan.executor.rewards.functions import ScorerConfig, resolve

HERE = Path(__file__).parent
PARTS = [
{lines}]
FUNCTIONS = [(weight, resolve(config).within(config.deadline_s)) for weight, config in PARTS]


def score(prompt, response, answer):
    """The reward of one response: the weighted sum of the job's parts."""
    return float(sum(weight * function(prompt, response, answer) for weight, function in FUNCTIONS))
{_SHAPES[framework]}'''


def _config(part: RewardSpec, source: ExportSource) -> str:
    said: dict[str, Any] = {"reward_kind": part.kind, "function": part.function, "deadline_s": part.deadline_s}
    said |= {key: value for key in ("pattern", "packages", "partial") if (value := getattr(part, key))}
    shown = ", ".join(f"{key}={value!r}" for key, value in said.items())
    return f"ScorerConfig({shown}, search_path=str(HERE / {source.reward_folder!r}))"


def rows_file(source: ExportSource, framework: str) -> str:
    """prepare.py: writes the job's rows as `data.parquet` (verl, SkyRL) or `data.jsonl` (others)."""
    head = f'''"""Writes the rows of {source.data} as {framework} reads them."""

import json
from pathlib import Path

HERE = Path(__file__).parent
ROWS = [json.loads(line) for line in (HERE / {source.data!r}).read_text(encoding="utf-8").splitlines() if line.strip()]


def chat(prompt):
    """The prompt as chat messages."""
    return [{{"role": "user", "content": prompt}}] if isinstance(prompt, str) else prompt


'''
    if framework in ("verl", "skyrl"):
        row = (
            '{"data_source": "rlplan", "prompt": chat(row["prompt"]),\n'
            '         "reward_model": {"style": "rule", "ground_truth": json.dumps(row["answer"])},\n'
            '         "extra_info": {"index": at, "id": row["id"], "prompt": json.dumps(row["prompt"])}}'
        )
        return (
            head
            + f"""if __name__ == "__main__":
    from datasets import Dataset

    rows = [
        {row}
        for at, row in enumerate(ROWS)
    ]
    Dataset.from_list(rows).to_parquet(HERE / "data.parquet")
"""
        )
    label = 'json.dumps(row["answer"])' if framework == "openrlhf" else 'row["answer"]'
    return (
        head
        + f"""if __name__ == "__main__":
    lines = [json.dumps({{"prompt": row["prompt"], "label": {label}}}) for row in ROWS]
    (HERE / "rows.jsonl").write_text("\\n".join(lines) + "\\n", encoding="utf-8")
"""
    )


def shell_line(command: Sequence[str], words: Sequence[str]) -> str:
    """A command with one word or flag a line."""
    return " \\\n    ".join([" ".join(command), *words]) + "\n"


def override_words(settings: Mapping[str, Any], prefixes: Mapping[str, str]) -> list[str]:
    """Hydra overrides; `prefixes`: `+` by key, for those that are not in the framework's own YAML."""
    return [shlex.quote(f"{prefixes.get(key, '')}{key}={hydra_text(value)}") for key, value in settings.items()]


def flag_words(settings: Mapping[str, Any]) -> list[str]:
    """Flags; one that is True stands alone, one that is False is left out."""
    words = []
    for key, value in settings.items():
        if value is True:
            words.append(key)
        elif value is not False and value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            words.append(" ".join([key, *(shlex.quote(_number(each)) for each in values)]))
    return words


def hydra_text(value: Any) -> str:
    """A value as Hydra's command line reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_text(each)}" for key, each in value.items()) + "}"
    return _number(value)


def _number(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def yaml_text(settings: Mapping[str, Any]) -> str:
    """Settings as lines of YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
