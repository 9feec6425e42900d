"""`rlplan doctor` at the command line: files, options, sums, remedies in the framework's keys, refusals."""

import pytest

from .command_line import data, printed, refused, rlplan

SLIME = ("--framework", "slime", "--model", "Qwen3-30B-A3B", "--gpus", "1x8xH100", "--optimizer-on", "host")

VERL = """set -x
MODEL=Qwen/Qwen2.5-7B-Instruct
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=${LENGTH:-4096} \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.9 \\
    actor_rollout_ref.rollout.over_sample_rate=0.1 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(VERL)
    return path


def test_an_optimizer_on_a_host_that_is_too_small_is_named():
    found = data("doctor", *SLIME, "--host-gb", 1007, code=1)
    assert found["fits"] is False
    first = found["first"]
    assert (first["phase"], first["where"], first["step"]) == ("train", "host", 2)
    assert first["needed_bytes"] > first["capacity_bytes"]
    assert data("doctor", *SLIME, "--host-gb", 2000)["fits"] is True


def test_a_layout_that_does_not_divide_is_not_said_to_fit():
    slime = ("--framework", "slime", "--model", "Qwen3-4B", "--gpus", "1x8xH100", "--train-tp", 3)
    found = data("doctor", *slime, code=1)
    assert found["fits"] is False and found["first"] is None and "does not divide" in found["no_seconds"]
    assert "cannot run" in printed("doctor", *slime, code=1)
    trl = ("--framework", "trl", "--model", "Qwen3-4B", "--gpus", "1x8xH100", "--train-tp", 2)
    assert "which has none" in printed("doctor", *trl, code=1)


def test_the_host_it_asks_for_has_room():
    said = ("--framework", "slime", "--model", "Qwen3-14B", "--gpus", "1x8xH100", "--train-gpus", 4, "--train-tp", 4)
    small = data("doctor", *said, "--optimizer-on", "host", "--host-gb", 256, code=1)
    advice = next(finding["advice"] for finding in small["findings"] if finding["rule"] == "host-memory")
    asked = float(advice.split("hosts of ")[1].split(" GB")[0])
    hosts = [use for use in data("doctor", *said, "--optimizer-on", "host", "--host-gb", asked + 1)["memory"]]
    assert all(use["fits"] for use in hosts if use["where"] == "host")


def test_more_samples_than_are_simulated_have_no_seconds():
    found = data("doctor", *SLIME, "--prompts", 1000000, "--samples", 1000)
    assert found["step_s"] is None and "more than is simulated" in found["no_seconds"]


def test_a_script_is_judged_and_mended_in_its_own_keys(script):
    found = data("doctor", script, "--gpus", "H100", code=1)
    assert found["fits"] is False and found["first"]["where"] == "device" and found["step_s"] > 0
    assert found["limits_s"].keys() >= {"generation", "update"}
    assert all(0 < limit < found["phases_s"][name] for name, limit in found["limits_s"].items())
    remedies = [remedy for finding in found["findings"] for remedy in finding["remedies"]]
    assert remedies and all("actor_rollout_ref." in each["write"] or "trainer." in each["write"] for each in remedies)
    assert "dead-key" in {finding["rule"] for finding in found["findings"]}
    said = printed("doctor", script, "--gpus", "H100", "--explain", code=1)
    assert "does not fit" in said and "fits with" in said and "ranks x 4 B" in said and "memory by phase" in said


def test_options_stand_above_the_file(script):
    assert data("doctor", script, "--gpus", "H200", "--memory-share", 0.5, "--micro-batch", 1)["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a FILE, or --framework, --model and --gpus"),
        (("--framework", "slime", "--model", "Qwen3-4B"), "name a FILE, or --framework"),
        ((*SLIME[:4], "--gpus", "1x8xZ9"), "no GPU 'Z9' is known"),
        (("--framework", "trl", "--model", "mine", "--gpus", "1x8xH100"), "model mine"),
        (("absent.sh",), "absent.sh: no such file"),
        ((*SLIME, "--host-gb", "nan"), "no finite number"),
        ((*SLIME, "--memory-share", "nan"), "no finite number"),
        ((*SLIME, "--prompts", 10**12), "--prompts"),
        ((*SLIME, "--micro-batch", 2, "--micro-batch-tokens", 100), "two ways to say one thing"),
        ((*SLIME, "--mean-response-tokens", 900, "--max-response-tokens", 100), "is above --max-response-tokens"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(arguments, said):
    refused(rlplan("doctor", *arguments), said)


def test_a_script_that_names_no_gpu_is_asked_for_it(script):
    refused(rlplan("doctor", script), "add --gpus H100")
    refused(rlplan("doctor", script, "--gpus", "2x8xH100"), "--gpus says 2x8xH100")
