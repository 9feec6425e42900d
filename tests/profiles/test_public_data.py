"""Readers of public trainer and sync measurements: what they keep, what they refuse, and that fits find the law."""

from dataclasses import replace

import numpy as np
import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.laws.sync_law import cold_start_s, sync_s
from rlplan.tools import train_file
from rlplan.tools import transfers_and_prices as sync
from rlplan.tools.train_file import fit_memory, fit_time, memory_errors, read_runs, time_errors

from .public_laws import neutral

HEADER = ",".join(train_file.COLUMNS)
GOOD = "rl,NVIDIA H100 80GB HBM3,8,Qwen/Qwen3-4B,,16384,Recompute,flash_attention_3,2,True,4.7,17.1"


def write(path, *rows):
    path.write_text("\n".join(rows) + "\n")
    return path


def test_runs_that_are_not_ours_are_left_out(tmp_path):
    others = [
        GOOD.replace(",,16384", ",16.0,16384"),  # an adapter
        GOOD.replace("Recompute", "Offload"),
        GOOD.replace("True", "False"),
        GOOD.replace("attention_3", "attention_2"),
        GOOD.replace("Qwen/Qwen3-4B", "somebody/novel"),
    ]
    (run,) = read_runs(write(tmp_path / "t.csv", HEADER, GOOD, *others))
    assert (run.model, run.device, run.layout.dp, run.layout.micro_batch_tokens) == ("Qwen3-4B", "H100", 8, 16384)
    assert run.policy_loss and run.seconds == 4.7 and run.peak_bytes == 17.1 * 2**30


def test_wrong_files_are_one_line(tmp_path):
    with pytest.raises(InputError, match="no column"):
        read_runs(write(tmp_path / "a.csv", "type,device"))
    with pytest.raises(InputError, match=r":2: .*no number"):
        read_runs(write(tmp_path / "b.csv", HEADER, GOOD.replace("4.7", "fast")))
    with pytest.raises(InputError, match="has no run"):
        read_runs(write(tmp_path / "c.csv", HEADER))
    for read in (read_runs, sync.read_syncs):
        with pytest.raises(InputError, match="no such file"):
            read(tmp_path / "none.csv")
    with pytest.raises(InputError, match="no column"):
        sync.read_syncs(write(tmp_path / "d.csv", "model"))


def runs(tmp_path):
    rows = [
        GOOD.replace("Qwen3-4B", model).replace("16384", length).replace("H100 80GB HBM3", device)
        for model in ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-30B-A3B")
        for length in ("4096", "16384", "65536")
        for device in ("H100 80GB HBM3", "H200")
    ]
    return read_runs(write(tmp_path / "t.csv", HEADER, *rows))


def test_a_fit_of_steps_predicts_models_that_it_has_not_seen(tmp_path):
    factors = {name: 1.3 * value for name, value in neutral().items()}
    measured = [replace(run, seconds=run.predict_s(factors)) for run in runs(tmp_path)]
    fitted = fit_time(measured).as_dict()
    assert [run.predict_s(fitted) for run in measured] == pytest.approx([run.seconds for run in measured], rel=0.03)
    errors = time_errors(measured, lambda run: run.model)
    assert set(errors) == {"Qwen3-0.6B", "Qwen3-4B", "Qwen3-30B-A3B"}
    assert errors["Qwen3-4B"] < 0.1


def test_a_fit_of_memory_predicts_models_that_it_has_not_seen(tmp_path):
    known = runs(tmp_path)
    truth = train_file._peaks(known, np.log([1.4, 0.9]))
    measured = [replace(run, peak_bytes=float(peak)) for run, peak in zip(known, truth, strict=True)]
    assert fit_memory(measured).as_dict() == pytest.approx({"activations": 1.4, "rest": 0.9}, rel=0.03)
    assert max(memory_errors(measured, lambda run: run.model).values()) < 0.05


def test_syncs_take_longer_for_more_bytes_and_for_more_tensors(tmp_path):
    header = ",".join(sync.COLUMNS)
    rows = ["Qwen2.5-7B,1 node,nccl full broadcast,5,7", "Qwen2.5-7B,(colocated),p2p,1,1", "Novel,1 node,default,1,1"]
    file = write(tmp_path / "s.csv", header, *rows)
    (run,), (shared,) = sync.read_syncs(file), sync.read_syncs(file, colocated=True)
    assert (run.seconds, shared.seconds) == (6, 1) and run.architecture.name == "Qwen2.5-7B"
    factors = sync.fit_sync([run]).as_dict()
    small, large, sparse = (architecture_of(n) for n in ("Qwen2.5-7B", "Qwen2.5-32B", "Qwen3-30B-A3B"))
    assert sync_s(small, factors) < sync_s(large, factors) < sync_s(sparse, factors)


def test_an_engine_of_more_ranks_starts_sooner():
    shape = architecture_of("Qwen2.5-7B")
    assert cold_start_s(shape, 4) < cold_start_s(shape, 1)
