"""Feeds the words of an exported command to a framework's own parser; run by tools/check_exports.py, never imported.

    python parser_driver.py FRAMEWORK ROOT COMMANDS [MEGATRON SGLANG]

ROOT holds the framework's source, COMMANDS is a JSON list of lists of words. Packages that parsing does not need and
that are not installed become empty objects. Prints a JSON list: for each command true, or what the parser said.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

MOST_MISSING = 200
STUBBED: set[str] = set()


class Stub(types.ModuleType):
    """A module that has any attribute."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules in `STUBBED`, and what is below them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        known = any(name == root or name.startswith(f"{root}.") for root in STUBBED)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: it is empty."""


def without_missing(work: Callable[[], Any], *purged: str) -> Any:
    """The result of `work`; each module that it misses is stubbed, and what was half imported is forgotten."""
    sys.meta_path.insert(0, StubFinder())
    for _ in range(MOST_MISSING):
        try:
            return work()
        except ModuleNotFoundError as error:
            STUBBED.add(str(error.name))
            for name in [each for each in sys.modules if each.split(".")[0] in purged]:
                del sys.modules[name]
    raise SystemExit(f"more than {MOST_MISSING} modules are missing")


def verl(root: str, words: list[str]) -> Any:
    """Hydra composes the configuration; a key that is not in it is an error."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(f"{root}/verl/trainer/config", version_base=None):
        config = compose("ppo_trainer", overrides=words)
    return OmegaConf.to_container(config, resolve=True)["data"]["train_batch_size"]


def skyrl(root: str, words: list[str]) -> Any:
    """The typed configuration of its entry point."""
    sys.path[:0] = [root, f"{root}/skyrl-gym"]

    def parsed() -> Any:
        from skyrl.train.config import SkyRLTrainConfig

        return SkyRLTrainConfig.from_cli_overrides(words).trainer.train_batch_size

    return without_missing(parsed, "skyrl", "skyrl_gym")


def openrlhf(root: str, words: list[str]) -> Any:
    """The script as it is started, up to its call of `train`: its parser and its checks."""
    sys.path.insert(0, root)
    tree = ast.parse(Path(f"{root}/openrlhf/cli/train_ppo_ray.py").read_text(encoding="utf-8"))
    main = tree.body[-1]
    assert isinstance(main, ast.If), "the script ends with its main part"
    main.body = [each for each in main.body if ast.unparse(each) != "train(args)"]
    sys.argv = ["train_ppo_ray", *words]

    def parsed() -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(tree, "train_ppo_ray.py", "exec"), names)
        return names["args"].rollout.batch_size

    return without_missing(parsed, "openrlhf")


def slime(root: str, words: list[str], megatron: str, sglang: str) -> Any:
    """Megatron's parser with slime's and SGLang's flags, as slime puts it together; every word must be known."""
    import torch  # noqa: F401 - Megatron's and SGLang's own modules need the real ones
    from transformers import AutoConfig

    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    # SGLang adds models that transformers has already.
    setattr(AutoConfig, "register", staticmethod(lambda *_, **__: None))  # noqa: B010
    sys.path[:0] = [root, megatron, sglang]

    def makers() -> Any:
        from megatron.training.arguments import add_megatron_arguments
        from slime.backends.sglang_utils.arguments import add_sglang_arguments
        from slime.utils.arguments import get_slime_extra_args_provider

        return add_megatron_arguments, get_slime_extra_args_provider(), add_sglang_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
    for make in without_missing(makers, "megatron", "slime", "sglang"):
        make(parser)
    known, rest = parser.parse_known_args(words)
    if rest:
        raise SystemExit(f"unknown: {rest}")
    return known.actor_num_nodes


def trl(root: str, words: list[str]) -> Any:
    """The parser of an exported train.py; `words`: --config and the file."""
    trl: Any = importlib.import_module("trl")
    args, _ = trl.TrlParser((trl.GRPOConfig, trl.ModelConfig)).parse_args_and_config(words)
    return args.generation_batch_size


def refuse(parser: argparse.ArgumentParser, message: str) -> typing.NoReturn:
    """In place of `ArgumentParser.error`, which prints and exits: the message is raised."""
    raise SystemExit(message)


def accepted(parse: Callable[..., Any], root: str, words: list[str], others: list[str]) -> bool | str:
    """True, or what the parser says against the words."""
    try:
        parse(root, words, *others)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a parser raises is its refusal
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return True


if __name__ == "__main__":
    framework, root, commands, *others = sys.argv[1:]
    setattr(argparse.ArgumentParser, "error", refuse)  # noqa: B010 - a method is assigned
    parses: dict[str, Callable[..., Any]] = {
        "verl": verl, "skyrl": skyrl, "openrlhf": openrlhf, "slime": slime, "trl": trl,
    }  # fmt: skip
    print(json.dumps([accepted(parses[framework], root, words, others) for words in json.loads(commands)]))
