"""An InputError is one line, also after it was pickled; what raises it is loaded quickly."""

import pickle
import subprocess
import sys

from rlplan.plans.yaml.errors import InputError, joined


def test_the_text_is_place_and_message_on_one_line():
    assert str(InputError("wrong\n  value", "a.yaml", 3)) == "a.yaml:3: wrong value"
    assert str(InputError("missing", "a.yaml")) == "a.yaml: missing" and str(InputError("bad option")) == "bad option"
    error = pickle.loads(pickle.dumps(InputError("wrong", "a.yaml", 3)))
    assert (str(error), error.message, error.path, error.line) == ("a.yaml:3: wrong", "wrong", "a.yaml", 3)


def test_joined_errors_are_told_in_order_and_each_alone():
    error = joined([InputError(f"wrong {number}", "a.yaml", number) for number in (1, 2, 3)])
    assert [(each.line, each.message) for each in error.each()] == [(n, f"wrong {n}") for n in (1, 2, 3)]
    assert error.lines() == [f"a.yaml:{number}: wrong {number}" for number in (1, 2, 3)]
    assert str(error).startswith("a.yaml:1: wrong 1") and "\n" not in str(error)
    assert joined([InputError("alone")]).lines() == ["alone"]


def test_catching_errors_loads_no_library():
    code = "import sys, rlplan.plans.yaml.errors; print([m for m in ('pydantic', 'yaml', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
