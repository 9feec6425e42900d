"""Whole runs of a job that trains adapters, on shared engines: what engines are sent, and what a resumed run does."""

import pytest
from safetensors.torch import load_file

from rlplan.executor.records.model_export import export_model
from rlplan.traces.run_log import TRACE, read_run

from .tiny_job import make_plan, write_job, write_plan

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def adapted_plan(folder, model, sent):
    folder.mkdir()
    write_job(folder, model)
    job = folder / "job.yaml"
    lora = f"{{path: model, dtype: float32, lora: {{rank: 2, alpha: 8, sent: {sent}}}}}"
    job.write_text(job.read_text().replace("{path: model, dtype: float32}", lora))
    return write_plan(make_plan(folder, cutoff=None), folder / "plan.yaml")


def numbers(run):
    """Of each step: what was drawn and trained, and the bytes that were sent before it."""
    steps = read_run(run / TRACE).steps
    assert all(step.metrics["logprob_max_abs_diff"] < 1e-4 for step in steps), "engine and trainer differ"
    told = [(step.trained_tokens, step.reward_mean, step.metrics["grad_norm"]) for step in steps]
    return told, {step.weights_bytes for step in steps}


def test_adapters_alone_make_the_same_engines_as_all_weights(tmp_path, execute, tiny_model):
    merged, alone = (adapted_plan(tmp_path / sent, tiny_model, sent) for sent in ("merged", "adapter"))
    for plan in (merged, alone):
        assert execute(plan, "--out", plan.parent / "run", "--steps", 3) == 0
    whole, part = numbers(merged.parent / "run"), numbers(alone.parent / "run")
    for one, other in zip(whole[0], part[0], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    (all_bytes,), (adapter_bytes,) = whole[1], part[1]
    model = load_file(tiny_model / "model.safetensors")
    assert all_bytes == sum(tensor.nbytes for tensor in model.values()) > 5 * adapter_bytes
    exported = export_model(alone.parent / "run", tmp_path / "exported", adapter=True)
    assert adapter_bytes == 4 * exported.parameters

    stopped = tmp_path / "stopped"
    assert execute(alone, "--out", stopped, "--steps", 2) == 0
    assert execute(alone, "--out", stopped, "--steps", 3, "--resume") == 0
    for one, other in zip(numbers(stopped)[0], part[0], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
