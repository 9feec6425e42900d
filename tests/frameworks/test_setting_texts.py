"""What remedies and placements say to write: keys that the framework has, in texts that stand for the whole change."""

import re
from dataclasses import replace

import pytest

from rlplan.frameworks.keys.key_table import key_table
from rlplan.frameworks.readers.read_setup import setup_from_flags
from rlplan.frameworks.setting_texts import TEXTS, changes_text
from rlplan.planner.doctor.changed_setups import _changes, can_be_set
from rlplan.planner.doctor.diagnose import diagnose, known_gpu, known_model
from rlplan.planner.doctor.setup_memory import setup_uses

FRAMEWORKS = ("verl", "slime", "vime", "trl", "skyrl", "openrlhf")
OTHERS = {
    "trl": {"vllm-serve", "accelerate", "launch", "--num_machines", "--num_processes", "--tensor_parallel_size",
            "--data_parallel_size", "--config_file", "deepspeed_config.offload_optimizer_device"},
}  # fmt: skip
"""Words of TRL's launchers, which are no keys of GRPOConfig (accelerate; trl/scripts/vllm_serve.py)."""


def keys_of(text: str) -> list[str]:
    """The keys that a text names: `--flag`, `a.key=value`, `+a.key=value`, `key: value`."""
    return re.findall(r"--[\w.-]+|\+{0,2}[a-z_0-9]+(?:\.[\w]+)+(?==)|\b[a-z_]+(?:\.[a-z_]+)?(?=: )", text)


def known(framework: str, key: str) -> bool:
    return key.lstrip("+") in key_table(framework) or key in OTHERS.get(framework, ())


def setups(framework: str):
    """Set-ups with something to mend or to move, of each backend that the framework has."""
    most = {"framework": framework, "model": "Qwen3-30B-A3B", "nodes": 2, "gpus_per_node": 8, "gpu": "H100"}
    layouts = [{}, {"train_tp": 2}] if framework in ("verl", "skyrl", "slime", "vime") else [{}]
    for layout in layouts:
        for optimizer in ("device", "host"):
            for sides in ({}, {"train_gpus": 8}):
                setup = setup_from_flags(**most, **layout, **sides, optimizer_on=optimizer, micro_batch=8)
                yield replace(setup, rollout_tp=2, recompute="none", host_bytes=2e11)
    for sleeps in (True, False):
        yield replace(setup_from_flags(**most, micro_batch_tokens=65536), engine_sleeps=sleeps, memory_share=0.9)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_remedy_is_written_in_keys_that_exist(framework):
    written = set()
    for setup in setups(framework):
        a, gpu = known_model(setup), known_gpu(setup)
        for use in setup_uses(setup, a, gpu):
            for changes in _changes(setup, a, use):
                if can_be_set(setup, changes):
                    text = changes_text(setup, changes)
                    assert text, (setup, changes)
                    written.add(text)
    unknown = {text: key for text in written for key in keys_of(text) if not known(framework, key)}
    assert not unknown
    assert all(keys_of(text) for text in written), [text for text in written if not keys_of(text)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_text_of_the_table_is_of_keys_that_exist(framework):
    for attribute, texts in TEXTS[framework].items():
        for text in (texts,) if isinstance(texts, str) else texts.values():
            assert all(known(framework, key) for key in keys_of(text)), (attribute, text)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_placements_are_written_in_keys_that_exist(framework):
    for sides in ({}, {"train_gpus": 4}):
        setup = setup_from_flags(framework, model="Qwen3-4B", nodes=1, gpus_per_node=8, gpu="H100", **sides)
        for placed in diagnose(setup).placements:
            text = changes_text(setup, placed.changes)
            assert keys_of(text) and all(known(framework, key) for key in keys_of(text)), (placed, text)


def test_machines_of_a_side_are_written_with_the_change():
    setup = setup_from_flags("slime", model="Qwen3-4B", nodes=2, gpus_per_node=8, gpu="H100")
    apart = {"colocated": False, "train_gpus": 12, "rollout_gpus": 4, "engine_sleeps": False}
    text = changes_text(setup, apart)
    assert "drop --colocate" in text and "--rollout-num-gpus 4" in text
    assert "--actor-num-nodes 2 --actor-num-gpus-per-node 6" in text
    engines = replace(setup_from_flags("skyrl", model="Qwen3-4B", nodes=1, gpus_per_node=8), rollout_tp=1)
    assert "num_engines=2" in changes_text(engines, {"rollout_tp": 4})
    host = replace(setup, optimizer_at="host")
    assert changes_text(host, {"optimizer_at": "device", "nodes": 4}).count("drop --optimizer-cpu-offload") == 1
