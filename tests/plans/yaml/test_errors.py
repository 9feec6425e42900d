"""An InputError is one line, also after it was pickled."""

from __future__ import annotations

import pickle
import subprocess
import sys

from rlplan.plans.yaml.errors import InputError


def test_the_text_is_place_and_message_on_one_line() -> None:
    assert str(InputError("wrong\n  value", "a.yaml", 3)) == "a.yaml:3: wrong value"
    assert str(InputError("missing", "a.yaml")) == "a.yaml: missing"
    assert str(InputError("bad option")) == "bad option"


def test_an_error_survives_pickling_between_processes() -> None:
    error = pickle.loads(pickle.dumps(InputError("wrong", "a.yaml", 3)))
    assert (str(error), error.message, error.path, error.line) == ("a.yaml:3: wrong", "wrong", "a.yaml", 3)


def test_catching_errors_loads_no_library() -> None:
    code = "import sys, rlplan.plans.yaml.errors; print([m for m in ('pydantic', 'yaml', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_of_the_room_can_be_loaded() -> None:
    import rlplan.plans

    names = dir(rlplan.plans)
    assert "load_plan" in names
    assert all(getattr(rlplan.plans, name).__name__ == name for name in names)
