"""Files that several exports share: the job's reward as a function, its rows as a framework reads them, run.sh."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...plans.schema.reward_spec import WORKER_KINDS, RewardSpec
from .draft import ExportSource, Here

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
    return score(json.loads((extra_info or {}).get("prompt", '""')), solution_str, json.loads(ground_truth))
""",
    "slime": """

async def score_sample(args, sample, **_):
    \"\"\"The reward of a sample, as slime asks for it; other requests go on meanwhile.\"\"\"
    return await asyncio.to_thread(score, sample.prompt, sample.response, sample.label)
""",
    "openrlhf": """

def reward_func(queries, prompts, labels, **_):
    \"\"\"Rewards of a batch, as OpenRLHF asks for them: responses follow their prompts in `queries`, with tokens that
    end or pad them, which rewards do not see.\"\"\"
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        response = query.removeprefix(prompt)
        for special in TOKENIZER.all_special_tokens:
            response = response.replace(special, "")
        rewards.append(score(prompt, response, json.loads(label)))
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(rewards), "extra_logs": {}}
""",
    "skyrl": """

class RewardEnv(BaseTextEnv):
    \"\"\"One response and its reward, as SkyRL asks for it.\"\"\"

    def __init__(self, env_config=None, extras=None):
        super().__init__()
        self.row = extras["extra_info"]

    def step(self, action):
        reward = score(json.loads(self.row["prompt"]), action, json.loads(self.row["answer"]))
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})
""",
}
_IMPORTS = {
    "slime": ("import asyncio\n", "", ""),
    "skyrl": ("", "from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput\n", ""),
    "openrlhf": ("", "import torch\nfrom transformers import AutoTokenizer\n",
                 "TOKENIZER = AutoTokenizer.from_pretrained({})\n"),
}  # fmt: skip
"""By framework: what reward.py imports of Python and of others, and what it makes of the model's name."""


def reward_file(source: ExportSource, framework: str) -> str:
    """reward.py: the weighted sum of the job's parts that reward workers compute, in the framework's signature."""
    parts = [part for part in source.job.reward.parts if part.kind in WORKER_KINDS]
    lines = "".join(f"    ({part.weight!r}, {_config(part, source)}),\n" for part in parts)
    own, others, made = _IMPORTS.get(framework, ("", "", ""))
    return f'''"""The reward of {source.job.name}, by rlplan's own functions."""

{own}import json
from pathlib import Path

from rlplan.executor.rewards.functions import ScorerConfig, resolve
{others}
HERE = Path(__file__).parent
{made.format(_folder(source.model))}PARTS = [
{lines}]
FUNCTIONS = [(weight, resolve(config).within(config.deadline_s)) for weight, config in PARTS]


def score(prompt, response, answer):
    """The reward of one response: the weighted sum of the job's parts."""
    if not isinstance(prompt, str):  # chat messages
        prompt = "\\n".join(f"{{each['role']}}: {{each['content']}}" for each in prompt)
    return float(sum(weight * function(prompt, response, answer) for weight, function in FUNCTIONS))
{_SHAPES[framework]}'''


def _config(part: RewardSpec, source: ExportSource) -> str:
    said: dict[str, Any] = {"reward_kind": part.kind, "function": part.function, "deadline_s": part.deadline_s}
    said |= {key: value for key in ("pattern", "packages", "partial", "memory_bytes") if (value := getattr(part, key))}
    said |= {"sandbox": part.sandbox} if part.sandbox == "optional" else {}
    shown = ", ".join(f"{key}={value!r}" for key, value in said.items())
    return f"ScorerConfig({shown}, search_path=str(HERE / {source.reward_folder!r}))"


def rows_file(source: ExportSource, framework: str) -> str:
    """prepare.py: writes the job's rows as `data.parquet` (verl, SkyRL: chat messages) or `rows.jsonl` (others: text
    as the engines read it)."""
    job, data = f"HERE / {str(source.job_file)!r}", f"HERE / {str(source.data)!r}"
    if framework in ("verl", "skyrl"):
        return f'''"""Writes the rows of {source.data} as {framework} reads them."""

import json
from pathlib import Path

from datasets import Dataset
from rlplan.plans.files.prompt_rows import trained_rows
from rlplan.plans.schema.job import load_job

HERE = Path(__file__).parent


def chat(prompt):
    """The prompt as chat messages."""
    return [{{"role": "user", "content": prompt}}] if isinstance(prompt, str) else prompt


if __name__ == "__main__":
    rows = [
{_ROWS[framework]}        for at, row in enumerate(trained_rows(load_job({job}), {data}, "no"))
    ]
    Dataset.from_list(rows).to_parquet(HERE / "data.parquet")
'''
    label = "json.dumps(row.answer)" if framework == "openrlhf" else "row.answer"
    return f'''"""Writes the rows of {source.data} as {framework} reads them: chat messages by the model's template."""

import json
from pathlib import Path

from rlplan.executor.rollout.prompts import load_prompts, load_tokenizer
from rlplan.plans.files.prompt_rows import held_out_ids
from rlplan.plans.schema.job import load_job

HERE = Path(__file__).parent

if __name__ == "__main__":
    job, tokenizer = load_job({job}), load_tokenizer({_folder(source.named_model)})
    rows = load_prompts(
        {data}, tokenizer, job.rollout.max_prompt_tokens, job.reward, job.data.chat_template_kwargs
    )
    held_out = held_out_ids(job.data, rows)
    trained = [row for name, row in rows.items() if name not in held_out]
    lines = [json.dumps({{"prompt": row.text, "label": {label}}}) for row in trained]
    (HERE / "rows.jsonl").write_text("\\n".join(lines) + "\\n", encoding="utf-8")
'''


_ROWS = {
    "verl": """        {
            "data_source": "rlplan",
            "prompt": chat(row.prompt),
            "reward_model": {"style": "rule", "ground_truth": json.dumps(row.answer)},
            "extra_info": {"index": at, "id": row.id, "prompt": json.dumps(row.prompt)},
        }
""",
    "skyrl": """        {
            "env_class": "rlplan",
            "prompt": chat(row.prompt),
            "extra_info": {
                "index": at, "id": row.id, "prompt": json.dumps(row.prompt), "answer": json.dumps(row.answer)
            },
        }
""",
}


def skyrl_main() -> str:
    """main_rlplan.py: SkyRL's own main, with the environment of reward.py."""
    return '''"""Trains as skyrl.train.entrypoints.main_base does, with the rewards of reward.py."""

import sys

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray
from skyrl_gym.envs import register


@ray.remote(num_cpus=1)
def train(config):
    """One run."""
    register(id="rlplan", entry_point="reward:RewardEnv")
    BasePPOExp(config).run()


if __name__ == "__main__":
    config = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(config)
    initialize_ray(config)
    ray.get(train.remote(config))
'''


def _folder(model: str) -> str:
    """The model in a file of Python."""
    return f"str(HERE / {str(model)!r})" if isinstance(model, Here) else repr(model)


def run_file(source: ExportSource, rows: str, command: str) -> str:
    """run.sh: `rows`, the file of prepare.py, made anew where prepare.py is newer, then the command."""
    nodes = max(source.nodes, source.train_nodes)
    ray = (
        f"# First start Ray on all {nodes} nodes: `ray start --head` here, `ray start --address=...` on the others.\n"
        "# This folder is at the same path on all of them.\n"
    )
    return (
        f'set -e\ncd "$(dirname "$0")"\n{ray if nodes > 1 else ""}'
        f"[ {rows} -nt prepare.py ] || python3 prepare.py\n{command}"
    )


def shell_line(command: Sequence[str], words: Sequence[str]) -> str:
    """A command with one word or flag a line."""
    return " \\\n    ".join([" ".join(command), *words]) + "\n"


def override_words(settings: Mapping[str, Any], prefixes: Mapping[str, str]) -> list[str]:
    """Hydra overrides; `prefixes`: `+` by key, for those that are not in the framework's own YAML."""
    return [_quoted(f"{prefixes.get(key, '')}{key}={hydra_text(value)}") for key, value in settings.items()]


def _quoted(word: str) -> str:
    """A word for the shell, in which $PWD/ stands for the folder of the export."""
    if "$PWD/" not in word:
        return shlex.quote(word)
    escaped = re.sub(r'[$](?!PWD/)|[`"\\]', lambda found: "\\" + found[0], word)
    return f'"{escaped}"'


def flag_words(settings: Mapping[str, Any]) -> list[str]:
    """Flags; one that is True stands alone, one that is False is left out."""
    words = []
    for key, value in settings.items():
        if value is True:
            words.append(key)
        elif value is not False and value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            words.append(" ".join([key, *(_quoted(_number(each)) for each in values)]))
    return words


def hydra_text(value: Any) -> str:
    """A value as Hydra's command line reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_quoted_text(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_text(each)}" for key, each in value.items()) + "}"
    return _number(value)


def _quoted_text(value: Any) -> str:
    """An item of a list: in quotes where it is more than a word."""
    plain = isinstance(value, Here) or not isinstance(value, str) or re.fullmatch(r"[\w./-]+", value)
    return hydra_text(value) if plain else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> str:
    if isinstance(value, Here):
        return f"$PWD/{value}"
    return repr(value) if isinstance(value, float) else str(value)


def yaml_text(settings: Mapping[str, Any]) -> str:
    """Settings as lines of YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
