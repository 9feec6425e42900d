"""What verl loads of the plug-in: nothing heavy, and an error that its user reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlplan

BASE = """
TRAINER_REGISTRY = {}
"""
SYNC = """
from . import trainer_base
class PPOTrainerSync:
    def __init__(self, config):
        self.config = config
trainer_base.TRAINER_REGISTRY["sync"] = PPOTrainerSync
"""
USER = """
import sys
import verl
assert not any(name.startswith("verl.") for name in sys.modules), "the entry point imports verl's modules"
assert not {"torch", "ray", "pydantic"} & sys.modules.keys(), "the entry point imports heavy modules"
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
assert TRAINER_REGISTRY["sync"]({}).config == {}
TRAINER_REGISTRY["rlplan"]({})
"""


@pytest.fixture
def verl_without_its_parts(tmp_path):
    """A package of that name whose registry is verl's, and from which our trainer cannot be imported."""
    folder = tmp_path
    for name in ("verl", "trainer", "ppo", "v1"):
        folder /= name
        folder.mkdir()
        (folder / "__init__.py").touch()
    (tmp_path / "verl" / "__init__.py").write_text("import rlplan.frameworks.verl.verl_entry")
    (folder / "__init__.py").write_text("from . import trainer_base, trainer_sync")
    (folder / "trainer_base.py").write_text(BASE)
    (folder / "trainer_sync.py").write_text(SYNC)
    return tmp_path


def test_a_failed_import_is_loud_when_the_trainer_is_asked_for(verl_without_its_parts):
    paths = [str(verl_without_its_parts), str(Path(rlplan.__file__).parents[1])]
    ran = subprocess.run(
        [sys.executable, "-c", USER],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: rlplan's trainer for verl could not be loaded (ModuleNotFoundError:")
    assert "'rlplan[verl]'" in last and "trainer_mode" in last
