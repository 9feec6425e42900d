"""Small configurations of each framework give the setup that they state, with the framework's defaults named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import rlplan
from rlplan.frameworks.readers.read_setup import read_setup, setup_from_flags
from rlplan.plans.yaml.errors import InputError

VERL = """
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
DATA=(data.train_batch_size=$((64 * 2)) data.max_response_length=4096)
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo "${DATA[@]}" \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$TOKENS \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \\
    actor_rollout_ref.rollout.over_sample_rate=0.1 \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=sglang \\
    +actor_rollout_ref.rollout.enabel_sleep_mode=1 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""
SLIME = """
source "$(dirname "$0")/size.sh"
PERF_ARGS=(--tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216
  --context-parallel-size 2 --recompute-granularity full --optimizer-cpu-offload)
ray job submit --address=x -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \\
  --hf-checkpoint $DIR/my-own-model --use-kl-loss --rollout-batch-size 32 --n-samples-per-prompt 8 \\
  --global-batch-size 256 --rollout-max-response-len 8192 --rollout-num-gpus-per-engine 2 \\
  --sglang-mem-fraction-static 0.7 ${MODEL_ARGS[@]} ${PERF_ARGS[@]}
"""
SIZE = """
MODEL_ARGS=(--num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --vocab-size 151936 --kv-channels 128 --qk-layernorm)
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
torch_dtype: bfloat16
use_vllm: true
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
num_generations: 16
max_completion_length: 1024
beta: 0.04
"""
ACCELERATE = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}
mixed_precision: bf16
num_machines: 1
num_processes: 4
"""


def read(tmp_path, name, text, framework=None, **files):
    for other, content in files.items():
        (tmp_path / other.replace("_", ".")).write_text(content)
    (tmp_path / name).write_text(text)
    return read_setup(tmp_path / name, framework)


def aside(setup, kind):
    return {each.key: each.why for each in setup.left_aside if each.kind == kind}


def test_a_script_of_verl_gives_its_setup(tmp_path):
    setup = read(tmp_path, "run.sh", VERL)
    assert (setup.framework, setup.version, setup.model) == ("verl", "0.9.1", "Qwen/Qwen2.5-7B-Instruct")
    assert (setup.nodes, setup.gpus_per_node, setup.train_gpus, setup.rollout_gpus, setup.dp) == (2, 8, 16, 16, 8)
    assert (setup.prompts, setup.samples, setup.mini_batch_samples) == (128, 8, 256)
    assert (setup.backend, setup.zero, setup.sp, setup.recompute) == ("fsdp", 3, 2, "full")
    assert (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes) == (4.0, 4.0, 8.0)
    assert (setup.weights_at, setup.optimizer_at) == ("device", "between")
    assert (setup.reference, setup.reference_at, setup.critic) == (True, "host", False)
    assert (setup.engine, setup.rollout_tp, setup.memory_share, setup.engines) == ("sglang", 2, 0.5, 8)
    assert setup.keys["rollout_tp"] == "actor_rollout_ref.rollout.tensor_model_parallel_size"
    assert setup.lines["samples"] == 14
    assert {"rollout_tp", "memory_share", "max_prompt_tokens"} <= set(setup.defaulted)
    assert not {"samples", "sp", "optimizer_at", "prompts"} & set(setup.defaulted)


def test_what_a_reader_leaves_aside_has_its_reason(tmp_path):
    setup = read(tmp_path, "run.sh", VERL)
    assert "nothing reads it" in aside(setup, "dead")["actor_rollout_ref.rollout.over_sample_rate"]
    assert "actor_rollout_ref.rollout.enable_sleep_mode" in aside(setup, "unknown")[
        "actor_rollout_ref.rollout.enabel_sleep_mode"
    ]  # fmt: skip
    assert "$TOKENS" in aside(setup, "unresolved")["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"]
    # The default stands in for it: 16,384 tokens a GPU.
    assert setup.micro_batch_tokens == 16384


def test_a_composed_yaml_and_overrides_give_the_same(tmp_path):
    lines = ["data.train_batch_size=64", "actor_rollout_ref.rollout.n=4", "trainer.nnodes=1",
             "actor_rollout_ref.rollout.name=vllm", "data.max_response_length=2048",
             "actor_rollout_ref.model.path=Qwen/Qwen3-8B"]  # fmt: skip
    bare = read(tmp_path, "overrides.txt", " \\\n".join(lines))
    composed = """
data: {train_batch_size: 64, max_response_length: 2048}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B}
  rollout: {n: 4, name: vllm, response_length: "${oc.select:data.max_response_length,512}"}
trainer: {nnodes: 1}
"""
    full = read(tmp_path, "composed.yaml", composed)
    assert replace(full, source="", lines={}, left_aside=()) == replace(bare, source="", lines={}, left_aside=())
    assert full.lines["samples"] == 5


def test_megatron_in_verl_keeps_bf16_and_a_master_copy(tmp_path):
    text = VERL.replace("main_ppo \\", "main_ppo --config-name=ppo_megatron_trainer.yaml \\\n"
                        "  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \\")  # fmt: skip
    setup = read(tmp_path, "run.sh", text)
    assert (setup.backend, setup.zero, setup.tp, setup.sp) == ("megatron", 1, 4, 1)
    assert (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes) == (2.0, 4.0, 12.0)


def test_a_script_of_slime_gives_its_setup(tmp_path):
    setup = read(tmp_path, "run.sh", SLIME, size_sh=SIZE)
    assert (setup.framework, setup.model, setup.nodes, setup.train_gpus) == ("slime", "my-own-model", 1, 8)
    assert (setup.tp, setup.cp, setup.dp, setup.micro_batch_tokens) == (2, 2, 2, 9216)
    assert (setup.weights_at, setup.optimizer_at, setup.reference_at) == ("between", "host", "host")
    assert (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes) == (2.0, 4.0, 12.0)
    assert (setup.engine, setup.rollout_tp, setup.engines, setup.memory_share) == ("sglang", 2, 4, 0.7)
    assert setup.engine_sleeps and not setup.engine_keeps_weights_on_host
    assert setup.shape is not None
    assert (setup.shape.layers, setup.shape.kv_heads, setup.shape.tied) == (36, 8, True)
    assert setup.shape.parameters == pytest.approx(4.0e9, rel=0.02)


def test_slime_without_colocate_has_engines_apart(tmp_path):
    text = SLIME.replace("--colocate", "--rollout-num-gpus 8").replace("train.py", "train_async.py")
    setup = read(tmp_path, "run.sh", text, size_sh=SIZE)
    assert (setup.colocated, setup.nodes, setup.train_gpus, setup.rollout_gpus) == (False, 2, 8, 8)
    assert (setup.steps_ahead, setup.weights_at, setup.engine_sleeps) == (1, "device", False)


def test_flags_of_vllm_make_it_vime(tmp_path):
    text = SLIME.replace("--sglang-mem-fraction-static", "--vllm-gpu-memory-utilization")
    setup = read(tmp_path, "run.sh", text, size_sh=SIZE)
    assert (setup.framework, setup.engine, setup.memory_share) == ("vime", "vllm", 0.7)


def test_a_yaml_of_trl_is_plain_data_parallelism(tmp_path):
    setup = read(tmp_path, "grpo.yaml", TRL)
    assert (setup.backend, setup.zero, setup.train_gpus, setup.recompute) == ("ddp", 0, 8, "full")
    assert (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes) == (2.0, 2.0, 4.0)
    assert (setup.prompts, setup.samples, setup.mini_batch_samples) == (32, 16, 512)
    assert (setup.engine, setup.memory_share, setup.engine_sleeps) == ("vllm", 0.3, False)
    assert {"backend", "zero", "train_gpus"} <= set(setup.defaulted)
    assert setup.lines["samples"] == 7


def test_accelerate_says_what_is_sharded(tmp_path):
    beside = read(tmp_path, "grpo.yaml", TRL, accelerate_yaml=ACCELERATE)
    launch = "accelerate launch --config_file accelerate.yaml train_grpo.py --config grpo.yaml --num_generations 8"
    named = read(tmp_path, "run.sh", launch)
    for setup in (beside, named):
        assert (setup.backend, setup.zero, setup.train_gpus, setup.optimizer_at) == ("deepspeed", 3, 4, "host")
        assert (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes) == (2.0, 2.0, 12.0)
    assert (beside.samples, named.samples) == (16, 8)
    shipped = read(tmp_path, "run.sh", "trl grpo --config grpo.yaml --accelerate_config fsdp2")
    assert (shipped.backend, shipped.zero, shipped.weight_bytes, shipped.optimizer_bytes) == ("fsdp", 3, 4.0, 8.0)
    with pytest.raises(InputError, match=r"run\.sh:1: --config_file gone\.yaml: no such file"):
        read(tmp_path, "run.sh", launch.replace("accelerate.yaml", "gone.yaml"))


def test_a_python_script_of_trl_is_read(tmp_path):
    text = """
parser.add_argument("--batch", default=4)
config = GRPOConfig(num_generations=4, per_device_train_batch_size=args.batch, max_completion_length=2 * LENGTH)
trainer = GRPOTrainer(model="Qwen/Qwen3-0.6B", args=config, peft_config=LoraConfig(r=32))
"""
    setup = read(tmp_path, "train.py", text)
    assert (setup.model, setup.samples, setup.micro_batch_samples, setup.lora_rank) == ("Qwen/Qwen3-0.6B", 4, 4, 32)
    assert (setup.engine, setup.max_response_tokens, setup.lines["samples"]) == ("transformers", 512, 3)
    assert "2 * LENGTH" in aside(setup, "unresolved")["max_completion_length"]


def test_a_docstring_configures_nothing_that_is_not_there(tmp_path):
    text = '''"""
accelerate launch --config_file examples/zero9.yaml train.py --num_generations 8
"""
GRPOTrainer(model="Qwen/Qwen3-0.6B", args=GRPOConfig(per_device_train_batch_size=16))
'''
    setup = read(tmp_path, "train.py", text)
    assert (setup.model, setup.samples, setup.micro_batch_samples, setup.backend) == ("Qwen/Qwen3-0.6B", 8, 16, "ddp")
    assert "no such file" in aside(setup, "unresolved")["--config_file"]
    prose = text.replace("accelerate launch", "python train.py doesn't; accelerate launch")
    assert read(tmp_path, "train.py", prose).micro_batch_samples == 16


def test_a_server_of_trl_has_gpus_of_its_own(tmp_path):
    text = """
CUDA_VISIBLE_DEVICES=0,1,2,3 trl vllm-serve --model Qwen/Qwen2.5-7B --tensor-parallel-size 2 --data-parallel-size 2 &
CUDA_VISIBLE_DEVICES=4,5,6,7 accelerate launch --num_processes 4 grpo.py --model_name_or_path Qwen/Qwen2.5-7B \\
  --use_vllm --vllm_mode server --num_generations 8
"""
    setup = read(tmp_path, "run.sh", text)
    assert (setup.colocated, setup.nodes, setup.gpus_per_node) == (False, 2, 4)
    assert (setup.train_gpus, setup.rollout_gpus, setup.rollout_tp) == (4, 4, 2)


@pytest.mark.parametrize(
    "flags",
    [
        "--actor.model_name_or_path Llama-3.1-8B --ds.zero_stage 3 --actor.num_gpus_per_node 8 --vllm.num_engines 4 "
        "--vllm.tensor_parallel_size 2 --train.colocate_all --vllm.enable_sleep --rollout.batch_size 128 "
        "--rollout.n_samples_per_prompt 8 --algo.advantage.estimator group_norm --rollout.max_new_tokens 1024",
        "--pretrain Llama-3.1-8B --zero_stage 3 --actor_num_gpus_per_node 8 --vllm_num_engines 4 "
        "--vllm_tensor_parallel_size 2 --colocate_all_models --vllm_enable_sleep --rollout_batch_size 128 "
        "--n_samples_per_prompt 8 --advantage_estimator group_norm --generate_max_len 1024",
    ],
)
def test_old_and_new_flags_of_openrlhf_say_the_same(tmp_path, flags):
    setup = read(tmp_path, "run.sh", f"ray job submit -- python3 -m openrlhf.cli.train_ppo_ray {flags}")
    assert (setup.framework, setup.model, setup.zero, setup.engines) == ("openrlhf", "Llama-3.1-8B", 3, 4)
    assert (setup.colocated, setup.engine_sleeps, setup.engine_keeps_weights_on_host) == (True, True, True)
    assert (setup.prompts, setup.samples, setup.max_prompt_tokens, setup.critic) == (128, 8, 1024, False)
    assert (setup.weight_bytes, setup.gradient_bytes, setup.optimizer_bytes) == (2.0, 2.0, 12.0)
    assert aside(setup, "unknown") == {}


def test_overrides_of_skyrl_give_its_setup(tmp_path):
    text = """
uv run --with transformers==5.4.0 -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-1.5B \\
  trainer.placement.policy_num_gpus_per_node=4 generator.inference_engine.num_engines=4 \\
  trainer.train_batch_size=256 generator.n_samples_per_prompt=5 trainer.micro_train_batch_size_per_gpu=8
"""
    setup = read(tmp_path, "run.sh", text)
    assert (setup.framework, setup.train_gpus, setup.engines, setup.prompts) == ("skyrl", 4, 4, 256)
    assert (setup.weight_bytes, setup.optimizer_bytes, setup.weights_at) == (4.0, 8.0, "between")
    assert (setup.micro_batch_samples, setup.mini_batch_samples, setup.memory_share) == (8, 256 * 5, 0.8)
    assert aside(setup, "unknown") == {}


def test_our_own_job_beside_its_cluster_is_read():
    setup = read_setup(Path(rlplan.__file__).parent / "plans/examples/math-32b/job.yaml")
    assert (setup.framework, setup.model, setup.gpu) == ("rlplan", "Qwen/Qwen2.5-32B-Instruct", "H100")
    assert (setup.nodes, setup.train_gpus, setup.rollout_tp, setup.micro_batch_tokens) == (8, 64, 2, 16896)
    assert (setup.host_bytes, setup.colocated, setup.prompts) == (2e12, True, 128)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.sh", "echo hello", "no command of it starts RL training"),
        ("run.sh", "trl grpo --config gone.yaml", "--config gone.yaml: no such file"),
        ("x.yaml", "a: [1", "is no YAML"),
        ("x.yaml", "- 1", "holds no keys"),
        ("x.yaml", "a: 1", "no framework is known by these keys"),
        ("x.py", "print(1)", "a Python script is read if it calls TRL's GRPOConfig"),
        ("run.sh", SLIME.replace("--n-samples-per-prompt 8", "--n-samples-per-prompt eight"), "not a whole number"),
        ("x.yaml", "a: " + "[" * 5000, "is no YAML"),
        ("x.yaml", f"num_generations: {'9' * 5000}", "is no YAML"),
        ("run.sh", "python -m skyrl.main trainer.policy.model.lora.rank=inf", "lora.rank is"),
        ("run.sh", "python -m verl.trainer.main_ppo data.train_batch_size=8 trainer.nnodes=1", None),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, name, content, message):
    if message is None:
        assert read(tmp_path, name, content).model == "~/models/deepseek-llm-7b-chat"
        return
    with pytest.raises(InputError) as caught:
        read(tmp_path, name, content)
    assert message in str(caught.value) and len(caught.value.lines()) == 1


def test_flags_of_a_command_give_the_defaults_named():
    setup = setup_from_flags(
        "slime", model="Qwen3-30B-A3B", nodes=1, gpus_per_node=8, gpu="H100", host_bytes=1.0075e12, optimizer_on="host",
        train_tp=4, train_ep=8,
    )  # fmt: skip
    assert (setup.optimizer_at, setup.weights_at, setup.host_bytes, setup.ep) == ("host", "between", 1.0075e12, 8)
    assert (setup.colocated, setup.dp, setup.backend, setup.zero) == (True, 2, "megatron", 1)
    assert {"recompute", "rollout_tp", "micro_batch_tokens"} <= set(setup.defaulted)
    assert not {"optimizer_at", "tp", "ep", "model", "host_bytes"} & set(setup.defaulted)


@pytest.mark.parametrize("framework", ["verl", "skyrl"])
def test_a_layout_said_as_flags_trains_by_megatron(framework):
    setup = setup_from_flags(framework, model="Qwen2-7B", nodes=1, gpus_per_node=8, train_tp=2)
    assert (setup.backend, setup.tp, setup.zero, setup.gradient_bytes) == ("megatron", 2, 1, 4.0)
    assert setup_from_flags(framework, model="Qwen2-7B", nodes=1, gpus_per_node=8).backend == "fsdp"
    if framework == "verl":  # whose Megatron recomputes nothing unless told, and whose GRPO has a reference
        assert setup.recompute == "none" and setup.reference


def test_tokens_of_a_micro_batch_are_those_of_a_gpu(tmp_path):
    script = VERL.replace("$TOKENS", "4096")
    assert read(tmp_path, "run.sh", script).micro_batch_tokens == 4096
    flags = "--ds.ring_attn_size 2 --train.dynamic_batch_enable --train.max_tokens_per_gpu 4096 --actor.num_nodes 1"
    openrlhf = f"python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-7B {flags}"
    assert read(tmp_path, "o.sh", openrlhf).micro_batch_tokens == 4096


@pytest.mark.parametrize("framework", ["verl", "slime", "vime", "trl", "skyrl", "openrlhf"])
def test_sides_said_apart_have_gpus_of_their_own(framework):
    setup = setup_from_flags(framework, model="Qwen2.5-14B", nodes=2, gpus_per_node=8, train_gpus=4, micro_batch=2)
    assert (setup.colocated, setup.train_gpus, setup.rollout_gpus) == (False, 4, 12)
    assert (setup.weights_at, setup.engine_sleeps) == ("device", False)
    assert (setup.micro_batch_samples, setup.micro_batch_tokens) == (2, None)
    same = setup_from_flags(framework, model="Qwen2.5-14B", nodes=2, gpus_per_node=8, train_gpus=16, rollout_gpus=16)
    assert same.colocated
    with pytest.raises(InputError, match="the machines have 16 GPUs"):
        setup_from_flags(framework, model="Qwen2.5-14B", nodes=2, gpus_per_node=8, train_gpus=17)


def test_a_setup_is_plain_data(tmp_path):
    setup = read(tmp_path, "run.sh", VERL)
    assert json.loads(json.dumps(dict(setup.keys)))["prompts"] == "data.train_batch_size"
