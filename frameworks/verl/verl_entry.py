"""What verl loads of the plug-in when it is imported (entry point group `verl.plugins`); light, and never silent.

verl loads entry points in each of its processes, before its own modules, and logs one that fails at DEBUG only: its
user would read "Unknown trainer 'rlplan'". So nothing heavy is imported here. The trainer is registered when verl
imports its own trainers, and if that fails, a trainer in its place says why as soon as it is asked for.
"""

from __future__ import annotations

import importlib
import logging
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TRAINERS = "verl.trainer.ppo.v1.trainer_sync"
"""verl's module after which its registry and the trainer that ours extends exist."""

NAME = "rlplan"


def register() -> None:
    """Register the trainer, or one that raises what hinders it."""
    try:
        importlib.import_module(".verl_trainer", __package__)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user must read it
        logging.getLogger(__name__).error("%s", _said(error))
        _register_stub(error)


def _said(error: Exception) -> str:
    return (
        f"rlplan's trainer for verl could not be loaded ({type(error).__name__}: {error}): install "
        "'rlplan[verl]' with verl 0.9.1 in the environment of all nodes, or choose another trainer.v1.trainer_mode"
    )


def _register_stub(error: Exception) -> None:
    def refuse(self: Any, config: Any) -> None:
        raise ImportError(_said(error)) from error

    registry = importlib.import_module("verl.trainer.ppo.v1.trainer_base").TRAINER_REGISTRY
    base = sys.modules[TRAINERS].PPOTrainerSync
    registry[NAME] = type("UnavailableTrainer", (base,), {"__init__": refuse})


class _AfterImport(MetaPathFinder, Loader):
    """Loads one module as it would be loaded anyway, and calls `register` after it."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != TRAINERS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        register()


if TRAINERS in sys.modules:
    register()
else:
    sys.meta_path.insert(0, _AfterImport())
