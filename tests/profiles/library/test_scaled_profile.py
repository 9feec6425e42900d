"""A derived profile of one model as the profile of another: shape from the job's model alone, costs by the same law."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from rlplan.planner.choose.cost_error import rollout_error, update_error
from rlplan.planner.costs.update_costs import train_cost_in
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.schema.job import EngineSpec, JobPaths, load_job
from rlplan.plans.schema.levers import EngineLayout, LoraSpec
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.measured_fit import MEAN_OVER_DEVIATION
from rlplan.profiles.laws.rank_memory import token_bytes
from rlplan.profiles.laws.train_layouts import fitted_memory, physics_of
from rlplan.profiles.library import MODEL_NAMES, library_names, library_profile
from rlplan.profiles.library.fitness import other_model, unfit
from rlplan.profiles.library.scaled_profile import SCALED_ERROR, priced_as
from rlplan.profiles.profile_schema import Profile

from ...cli.solved_folder import GPU_JOB, write_profiled
from ..public_laws import update_layout

SECONDS = ("step_s", "step_s_per_sequence", "step_s_per_kv_token", "prefill_s", "prefill_s_per_token")
OF_8B = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 12288,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    file = tmp_path_factory.mktemp("job") / "job.yaml"
    file.write_text(GPU_JOB)
    return load_job(file)


@pytest.fixture
def scaled_to(job):
    """A shipped profile of one model as it prices another one, by its name or by its folder."""

    def scaled(profile, model, folder=None):
        return priced_as(profile, of(job, model), folder)

    return scaled


def test_a_jobs_narrower_cache_and_smaller_share_are_planned_with(job):
    shipped = library_profile("H100", "Qwen2.5-7B")
    folder, plain = None, priced_as(shipped, job, None).rollout
    half, small = ({"kv_cache_dtype": "fp8"}, {"gpu_memory_utilization": 0.5})
    narrow, less = (
        priced_as(shipped, job.model_copy(update={"engine": EngineSpec(**each)}), folder).rollout
        for each in (half, small)
    )
    for was, fp8, half_gpu in zip(plain, narrow, less, strict=True):
        assert fp8.kv_bytes_per_token == was.kv_bytes_per_token / 2
        assert fp8.kv_capacity_tokens == pytest.approx(2 * was.kv_capacity_tokens, abs=2)
        room = (was.kv_capacity_tokens - half_gpu.kv_capacity_tokens) * was.kv_bytes_per_token
        most = (was.kv_capacity_tokens - 1) * was.kv_bytes_per_token
        assert room == pytest.approx(min(0.4 * GPUS["H100"].memory_bytes * was.tp, most), rel=1e-4)
        assert half_gpu.kv_bytes_per_token == was.kv_bytes_per_token and fp8.step_s == was.step_s
    measured = shipped.model_copy(update={"provenance": "measured"})
    fp8_job = job.model_copy(update={"engine": EngineSpec(kv_cache_dtype="fp8")})
    assert priced_as(measured, fp8_job, None) is measured, "it was measured with it"


def of(job, model):
    return job.model_copy(update={"model": job.model.model_copy(update={"path": model})})


def folder_of(tmp_path, **changes):
    (tmp_path / "config.json").write_text(json.dumps({**OF_8B, **changes}))
    return tmp_path


def off(one, other, figures):
    """The largest relative difference of entries' figures."""
    pairs = zip(one.rollout, other.rollout, strict=True)
    return max(float(np.max(np.abs(np.array(figures(a)) / np.array(figures(b)) - 1))) for a, b in pairs)


def test_scaling_to_a_model_that_ships_gives_what_ships(scaled_to):
    names, tried = library_names(), 0
    for gpu, (one, other) in itertools.product(sorted({g for g, _ in names}), itertools.permutations(MODEL_NAMES, 2)):
        profile, own = library_profile(gpu, one), library_profile(gpu, other)
        scaled = scaled_to(profile, other)
        if scaled is profile:
            continue
        tried += 1
        assert [e.tp for e in scaled.rollout] == [e.tp for e in own.rollout]
        for key in ("kv_capacity_tokens", "kv_bytes_per_token", "curve_sequences"):
            assert [getattr(e, key) for e in scaled.rollout] == [getattr(e, key) for e in own.rollout]
        assert off(scaled, own, lambda e: e.curve_s) < 0.005
        assert off(scaled, own, lambda e: [getattr(e, key) for key in SECONDS]) < 0.005
        assert off(scaled, own, lambda e: [e.sync.p50, e.sync.p95, e.start.p50]) < 0.03
        assert scaled.model_parameters == own.model_parameters and scaled.train_law.model == other
    assert tried == 24, "7B and 8B, 70B and 72B, both ways, on six GPUs"


@pytest.mark.parametrize(
    "model",
    ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Math-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"],
)
def test_models_of_one_shape_leave_a_profile_as_it_is(scaled_to, model):
    profile = library_profile("H100", "Qwen2.5-7B")
    assert scaled_to(profile, model) is profile and profile.scaled == ""


def test_bytes_and_layouts_are_those_of_the_jobs_model_both_ways(scaled_to):
    profile = library_profile("H100", "Qwen2.5-7B")
    scaled = scaled_to(profile, "Qwen/Qwen3-8B")
    shape = architecture_of("Qwen3-8B")
    assert {e.kv_bytes_per_token for e in scaled.rollout} == {2 * shape.kv_values_per_token} == {147456}
    assert [e.tp for e in profile.rollout] == [1, 2, 4], "28 heads"
    assert [e.tp for e in scaled.rollout] == [1, 2, 4, 8], "32 heads"
    gpu_bytes, engine = 0.9 * 80e9 - 4e9, scaled.rollout[0]
    assert engine.kv_capacity_tokens == pytest.approx((gpu_bytes - 2 * shape.parameters) / 147456, rel=1e-4)
    assert scaled.model_parameters == shape.parameters and scaled.train_law.shape == shape
    ratio = engine.step_s_per_kv_token / profile.rollout[0].step_s_per_kv_token
    assert ratio == pytest.approx(147456 / 57344, rel=1e-3), "KV is read at one rate"
    back = scaled_to(scaled, "Qwen2.5-7B")
    assert off(back, profile, lambda e: [e.kv_capacity_tokens, e.kv_bytes_per_token]) == 0
    assert off(back, profile, lambda e: [*e.curve_s, *(getattr(e, key) for key in SECONDS)]) < 0.005
    assert back.train_law.model_copy(update={"error": 0}) == profile.train_law.model_copy(update={"error": 0})


def test_scaling_adds_its_error_and_says_it_in_one_line(scaled_to):
    profile, layout = library_profile("H100", "Qwen2.5-7B"), EngineLayout(2, 1)
    scaled = scaled_to(profile, "meta-llama/Llama-3.1-8B")
    added = SCALED_ERROR["dense"] / MEAN_OVER_DEVIATION
    assert rollout_error(scaled, layout) == pytest.approx(math.hypot(rollout_error(profile, layout), added))
    (first, *_), (before, *_) = scaled.rollout, profile.rollout
    assert first.error == pytest.approx(math.hypot(before.error, SCALED_ERROR["dense"]))
    assert first.evidence["prefill"].error > before.evidence["prefill"].error
    assert first.evidence["sync"] == before.evidence["sync"], "it is of left-out models already"
    train = train_cost_in(scaled, update_layout(8))
    assert update_error(scaled, train) == update_error(profile, train), "likewise"
    assert scaled.scaled == (
        "costs of Qwen2.5-7B scaled to meta-llama/Llama-3.1-8B (KV 131 kB a token in place of 57, weights 16.1 GB in "
        "place of 15.2): decoding +-24% in place of 20%; measure it: rlplan profile, or take its own: rlplan profile "
        "--shipped Llama-3.1-8B"
    )


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("Qwen/Qwen3-30B-A3B", "a dense model, and a mixture of experts"),
        ("Qwen/Qwen2.5-72B", "(72.7B), and that of Qwen2.5-72B, which ships, is nearer"),
        ("Qwen/Qwen3-14B", "(14.8B), and that of Qwen2.5-14B, which ships, is nearer"),
        ("lab/our-70b", "is nearer"),
        ("HuggingFaceTB/SmolLM2-135M", "(0.1B): they are more than 16 times apart"),
    ],
)
def test_a_model_of_another_kind_or_size_is_refused(job, scaled_to, model, why):
    profile = library_profile("H100", "Qwen2.5-7B")
    fault = other_model(profile, of(job, model), None)
    assert fault.rule == "profile-of-other-model" and why in fault.message
    assert scaled_to(profile, model).rollout == profile.rollout


def test_far_sizes_are_scaled_with_an_error_that_grows(scaled_to):
    profile, away = library_profile("H100", "Qwen2.5-7B"), math.log(7_615_616_512 / 494_032_768)
    small = scaled_to(profile, "Qwen/Qwen2.5-0.5B")
    assert [e.tp for e in small.rollout] == [1, 2], "14 heads, of which 2 have KV"
    assert small.rollout[0].error == pytest.approx(math.hypot(profile.rollout[0].error, 0.1 * (1 + away)), rel=1e-3)
    assert small.train_law.error == pytest.approx(math.hypot(profile.train_law.error, 0.1 * away), rel=1e-3)
    measured_s = 0.0025  # the step of one sequence, ../shared/data/gpu: one H100, vLLM 0.24, a model of this shape
    assert abs(small.rollout[0].curve_s[0] / measured_s - 1) < 0.1 * (1 + away)
    large = scaled_to(library_profile("H100", "Qwen3-30B-A3B"), "deepseek-ai/DeepSeek-V2-Lite")
    assert large.rollout[0].error > 0.2 and large.train_law.model == "DeepSeek-V2-Lite"


def test_a_model_of_unknown_shape_is_planned_as_the_profiles_and_said(scaled_to):
    profile = library_profile("H100", "Qwen2.5-7B")
    unknown = scaled_to(profile, "lab/our-own")
    assert unknown.model_copy(update={"scaled": ""}) == profile
    assert unknown.scaled.startswith("cannot tell from its name whether lab/our-own is Qwen2.5-7B")


def test_a_folders_config_goes_before_its_name(job, scaled_to, tmp_path):
    profile = library_profile("H100", "Qwen2.5-7B")
    (tmp_path / "8b").mkdir()
    scaled = scaled_to(profile, "checkpoint-500", folder_of(tmp_path / "8b"))
    assert scaled.train_law.model == "Qwen3-8B" and scaled.train_law.architecture == {}
    assert {e.kv_bytes_per_token for e in scaled.rollout} == {147456}
    larger = JobPaths("my-7B", None, folder_of(tmp_path, num_hidden_layers=72), tmp_path, "")
    (fault,) = unfit(profile, of(job, "my-7B"), larger, [])
    assert fault.rule == "profile-of-other-model", "its name says 7B"


def test_a_shape_of_no_table_prices_updates_and_survives_writing(scaled_to, tmp_path):
    profile = library_profile("H100", "Qwen2.5-7B")
    scaled = scaled_to(profile, "lab/ours", folder_of(tmp_path, num_key_value_heads=4, num_hidden_layers=38))
    shape = scaled.train_law.shape
    assert (scaled.train_law.model, shape.kv_heads, shape.layers) == ("ours", 4, 38)
    assert scaled.rollout[0].kv_bytes_per_token == 2 * 2 * 38 * 4 * 128
    again = loads(dump(scaled), Profile)
    assert again.train_law == scaled.train_law and again.scaled == scaled.scaled
    assert scaled_to(again, "lab/ours", tmp_path) is again, "as rlplan tune writes it"
    layout = update_layout(8)
    assert train_cost_in(again, layout) == train_cost_in(scaled, layout) != train_cost_in(profile, layout)
    for key, value in (("heads: 32", "heads: 0"), (" experts: 0", " experts: -1"), ("active_experts: 0", "toes: 10")):
        with pytest.raises(InputError, match=r"train_law\.architecture"):
            loads(dump(scaled).replace(key, value), Profile)


def test_a_mixture_of_experts_is_scaled_with_an_error_of_its_own(scaled_to, tmp_path):
    profile = library_profile("H100", "Qwen3-30B-A3B")
    sizes = {"hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 6144, "moe_intermediate_size": 768}
    folder = folder_of(tmp_path, **sizes, num_experts=128, num_experts_per_tok=4)
    scaled = scaled_to(profile, "lab/ours", folder)
    one, now = profile.rollout[0], scaled.rollout[0]
    assert scaled.train_law.shape.active_experts == 4 and now.kv_bytes_per_token == 2 * one.kv_bytes_per_token
    assert now.error == pytest.approx(math.hypot(one.error, 0.2))
    assert now.curve_s[3] < one.curve_s[3], "8 sequences visit fewer experts"
    assert scaled_to(profile, "dense", folder_of(tmp_path)) is profile


def test_a_config_of_wrong_types_leaves_the_shape_unknown(scaled_to, tmp_path):
    profile = library_profile("H100", "Qwen2.5-7B")
    for wrong in ({"num_hidden_layers": "many"}, {"hidden_size": None}, {"vocab_size": None}):
        assert scaled_to(profile, "ours", folder_of(tmp_path, **wrong)).scaled.startswith("cannot tell")


def test_added_tokens_change_the_vocabulary_without_a_word(scaled_to, tmp_path):
    profile = scaled_to(library_profile("H100", "Qwen2.5-7B"), "Qwen/Qwen3-8B").model_copy(update={"scaled": ""})
    more = scaled_to(profile, "sft", folder_of(tmp_path, vocab_size=OF_8B["vocab_size"] + 1024))
    assert more.scaled == "" and more.train_law.shape.vocab == 152960
    assert more.rollout[0].error == profile.rollout[0].error
    assert token_bytes(more.train_law.shape, 1, 2) == token_bytes(profile.train_law.shape, 1, 2)


def test_figures_that_the_law_does_not_have_stay_as_factors(scaled_to):
    profile = library_profile("H100", "Qwen2.5-7B")
    entries = [e.model_copy(update={"prefill_s": 2 * e.prefill_s, "sleep_s": 1.0}) for e in profile.rollout]
    edited = profile.model_copy(update={"rollout": tuple(entries)})
    plain, scaled = (scaled_to(p, "Qwen/Qwen3-8B") for p in (profile, edited))
    assert [e.prefill_s for e in scaled.rollout] == pytest.approx([2 * e.prefill_s for e in plain.rollout], rel=0.005)
    assert off(scaled, plain, lambda e: e.curve_s) < 0.005
    assert scaled.rollout[0].sleep_s == pytest.approx(scaled.model_parameters / profile.model_parameters)
    line = profile.model_copy(
        update={"rollout": tuple(e.model_copy(update={"curve_sequences": (), "curve_s": ()}) for e in profile.rollout)}
    )
    of_line = scaled_to(line, "Qwen/Qwen3-8B").rollout[0]
    assert of_line.curve_s == () and of_line.step_s == pytest.approx(plain.rollout[0].step_s, rel=0.1)


def test_shapes_are_alike_whatever_they_are_called():
    shape = architecture_of("Qwen3-8B")
    assert shape.is_shaped_as(dataclasses.replace(shape, name="ours", guessed=True))
    assert not shape.is_shaped_as(dataclasses.replace(shape, kv_heads=4))


def test_a_profile_measured_on_another_model_is_refused_for_good(tmp_path):
    write_profiled(tmp_path)
    folder = folder_of(tmp_path / "model")
    job = load_job(tmp_path / "job.yaml")
    profile = loads((tmp_path / "profile.yaml").read_text(), Profile)
    paths = JobPaths(str(folder), tmp_path / "data.jsonl", folder, tmp_path, "")
    (fault,) = unfit(profile, job, paths, [])
    assert (fault.rule, fault.forcible) == ("profile-of-other-model", False)
    assert "was measured on a model of 1e-06B parameters with 0.512 kB of KV" in fault.message
    assert "8.19B and 295 kB" in fault.message, "the job computes in float32"
    of_same = profile.model_copy(
        update={
            "model_parameters": 8_190_000_000,
            "rollout": (profile.rollout[0].model_copy(update={"kv_bytes_per_token": 294912}),),
        }
    )
    (fault,) = unfit(of_same, job, paths, [])
    assert (fault.rule, fault.forcible) == ("profile-of-earlier-job", True)
    assert priced_as(profile, job, folder) is profile


def adapted(job, **lora):
    return job.model_copy(update={"model": job.model.model_copy(update={"lora": LoraSpec(**lora)})})


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_adapters_save_a_pass_of_operations_and_the_weights_states(job, recompute):
    plain = library_profile("H100", "Qwen2.5-7B")
    job = of(job, "Qwen/Qwen2.5-7B")
    tuned = priced_as(plain, adapted(job, rank=32, alpha=64), None)
    layout = update_layout(8, recompute=recompute)
    rank, a = 32, plain.train_law.shape
    # Matrices of a layer: q and o 3584 x 3584, k and v 3584 x 512, three of 3584 x 18944.
    wanted = rank * 28 * (4 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18944))
    assert tuned.adapters.parameters == tuned.train_law.adapters.parameters == wanted < 0.011 * a.parameters
    passes = 3 + (recompute == "full")
    laws = [replaced(profile.train_law) for profile in (plain, tuned)]
    flops = [physics_of(law).token_s(layout, policy_loss=False) for law in laws]
    share = ((passes - 1) * a.common_parameters + passes * wanted) / (passes * a.common_parameters)
    assert flops[1] / flops[0] == pytest.approx(share, rel=0.02) and share == pytest.approx(1 - 1 / passes, abs=0.012)
    weights, adapters = (fitted_memory(profile.train_law, layout) for profile in (plain, tuned))
    assert adapters.kept["trainer_optimizer"] == pytest.approx(
        8 * wanted * plain.train_law.memory_factors["rest"], rel=0.1
    )
    assert adapters.kept["trainer_parameters"] < weights.kept["trainer_parameters"], "frozen weights are bfloat16"
    assert "trainer_unsharded_gradients" not in adapters.moments["backward"]
    assert train_cost_in(tuned, layout).step_s < train_cost_in(plain, layout).step_s


def replaced(law):
    """The law where nothing but products takes time."""
    return law.model_copy(update={"factors": {**law.factors, "elements": 0.0, "exchange": 0.0}})


def test_a_corrected_profile_is_of_its_own_adapters_alone(job):
    plain, job = library_profile("H100", "Qwen2.5-7B"), of(job, "Qwen/Qwen2.5-7B")
    merged, alone = (priced_as(plain, adapted(job, rank=8, alpha=8, sent=sent), None) for sent in ("merged", "adapter"))
    assert merged.rollout == plain.rollout and merged.sent_bytes(2) == plain.sent_bytes(2) == 2 * plain.model_parameters
    assert alone.sent_bytes(2) == 4 * alone.adapters.parameters < 0.01 * plain.sent_bytes(2)
    # Nothing but adapters crosses from a pool to another; each rank reads the weights of its node.
    assert all(a.sync_apart.p50 < p.sync_apart.p50 for a, p in zip(alone.rollout, plain.rollout, strict=True))
    # What a run corrected is kept with its adapters, and is of no other job.
    kept = loads(dump(alone), Profile)
    assert priced_as(kept, adapted(job, rank=8, alpha=8, sent="adapter"), None) is kept
    for other in (job, adapted(job, rank=4, alpha=8, sent="adapter")):
        with pytest.raises(InputError, match=r"are of adapters of rank 8, and the job's model.lora says another thing"):
            priced_as(kept, other, None)
