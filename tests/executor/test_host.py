"""What a process knows of its host."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from rlplan.executor.host import without_collection

ASK = "from rlplan.executor.host import output_file; print(output_file())"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell")
def test_the_file_of_a_process_s_output_is_known_and_a_pipe_is_none(tmp_path):
    log = tmp_path / "log of an actor"
    with log.open("w") as output:
        subprocess.run([sys.executable, "-c", ASK], stdout=output, check=True)
    assert log.read_text() == f"{log}\n"
    assert subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout == "None\n"


def test_nothing_is_collected_within_the_block_and_what_was_set_before_comes_back():
    for looked in (True, False):
        (gc.enable if looked else gc.disable)()
        try:
            with pytest.raises(ImportError), without_collection():
                assert not gc.isenabled()
                raise ImportError
            assert gc.isenabled() == looked
        finally:
            gc.enable()
