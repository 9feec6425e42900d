"""Feeds exports of the shipped plans to each framework's own parser, in throw-away environments without a GPU.

    python -m tools.check_exports SOURCES [--python PYTHON3.12] [--json]

SOURCES is the folder of `tools.framework_keys`. How each is parsed (tools/parser_driver.py): TRL by its TrlParser, in
this interpreter; verl by Hydra on its YAML; SkyRL by its typed configuration, OpenRLHF by its script up to the call of
`train`, both in an environment with hydra-core alone, what else they import being stubbed; slime by Megatron's parser
with slime's and SGLang's flags, from their checkouts, in this interpreter, which has torch. vime has no package and no
checkout here; its flags are looked up in its table alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import rlplan
from rlplan.frameworks.exports.draft import FrameworkExport
from rlplan.frameworks.exports.export_groups import export_groups
from rlplan.frameworks.exports.export_plan import EXPORTS, export_plan
from rlplan.frameworks.keys.key_table import key_table
from rlplan.frameworks.readers.shell_script import shell_commands
from rlplan.plans.facts.trainer_setup import Framework

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
DRIVER = Path(__file__).with_name("parser_driver.py")
SOURCES = {
    "verl": "verl-0.9.1",
    "skyrl": "skyrl-0.4.0",
    "openrlhf": "openrlhf-0.11.2",
    "slime": "slime-0.3.1",
    "trl": "",
}
STARTED = ("verl.trainer.main_ppo", "main_rlplan.py", "main_base", "openrlhf.cli.train_ppo_ray", "/train.py")
ADDED = {
    "slime": ["--rollout-batch-size", "32"],
    "openrlhf": ["--reward.remote_url", "reward.py", "--algo.advantage.estimator", "reinforce"],
}
"""What a user adds to the placement of a group's job: the parsers demand the size of a step, and a reward."""


def exports(framework: Framework, folder: Path) -> Iterator[tuple[str, Path, FrameworkExport, list[str]]]:
    """(name, folder, export, words that the user adds) of the three examples, of their plug-ins' forms and without."""
    for name in ("cpu-demo", "math-32b"):
        for plugin in (True, False):
            out = folder / f"{name}-{framework}-{plugin}"
            yield f"{name}{'' if plugin else ' --no-plugin'}", out, export_plan(
                EXAMPLES / f"{name}.yaml", framework, out, plugin=plugin
            ), []  # fmt: skip
    for job, export in export_groups(EXAMPLES / "groups.yaml", framework).items():
        yield f"groups/{job}", folder / f"groups-{framework}-{job}", export, ADDED.get(framework, [])


def words_of(script: Path) -> list[str]:
    """The arguments of the command that an exported run.sh starts."""
    for command in shell_commands(script, script.read_text(encoding="utf-8")).commands:
        texts = command.texts()
        at = next((i for i, text in enumerate(texts) if text.endswith(STARTED)), None)
        if at is not None:
            return texts[at + 1 :]
    raise AssertionError(f"{script} starts no trainer")


def parsed(framework: str, commands: list[list[str]], sources: Path, light: str) -> list[bool | str]:
    """For each command true, or what the framework's parser says against it."""
    python, others = light, list[str]()
    if framework in ("trl", "slime"):
        python = sys.executable
    if framework == "slime":
        others = [str(sources / name) for name in ("megatron-2026-08", "sglang-0.5.15.post1")]
    root = str(sources / SOURCES[framework])
    command = [python, "-W", "ignore", str(DRIVER), framework, root, json.dumps(commands), *others]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        return [(done.stderr.strip().splitlines() or ["no message"])[-1]] * len(commands)
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def check(sources: Path, python: str) -> dict[str, object]:
    """`{"accepted": {framework: {export: True or what was said}}, "dead_keys": number, "unknown_keys": number}`"""
    accepted: dict[str, object] = {}
    dead = unknown = 0
    with tempfile.TemporaryDirectory(prefix="rlplan-exports-") as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "light"], check=True)
        light = str(folder / "light" / "bin" / "python")
        needs = ["hydra-core", "omegaconf", "pyyaml", "packaging"]
        subprocess.run([light, "-m", "pip", "install", "--quiet", *needs], check=True)
        for framework in EXPORTS:
            table = key_table(framework)
            titles, commands = list[str](), list[list[str]]()
            for title, out, export, added in exports(framework, folder):
                out.mkdir()
                for file, text in export.files.items():
                    (out / file).write_text(text, encoding="utf-8")
                dead += sum(table.dead(key) is not None for key in export.settings)
                unknown += sum(key not in table for key in export.settings)
                titles.append(title)
                on_cpu = ["--config", str(out / "grpo.yaml"), "--use_cpu", "true", "--bf16", "false"]
                commands.append(on_cpu if framework == "trl" else words_of(out / "run.sh") + added)
            if framework in SOURCES and (sources / SOURCES[framework]).is_dir():
                accepted[framework] = dict(zip(titles, parsed(framework, commands, sources, light), strict=True))
            else:
                accepted[framework] = "no source here: keys were looked up in the table alone"
    return {"accepted": accepted, "dead_keys": dead, "unknown_keys": unknown}


def main() -> None:
    """Print the result; a line a framework, or one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=Path)
    parser.add_argument("--python", default="python3.12", help="interpreter of the light environment, 3.12 or later")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = check(options.sources.resolve(), options.python)
    if options.json:
        print(json.dumps(result))
        return
    for framework, each in dict(result["accepted"]).items():  # type: ignore[call-overload]
        print(
            framework,
            each if isinstance(each, str) else f"{sum(v is True for v in each.values())} of {len(each)}",
            each,
        )
    print("dead keys", result["dead_keys"], "unknown keys", result["unknown_keys"])


if __name__ == "__main__":
    main()
