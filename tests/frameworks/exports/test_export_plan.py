"""Exports of the shipped plans: every key exists, what is written says what the plan says, and costs are named."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import rlplan
from rlplan.frameworks.exports.draft import ExportDraft, ExportSource, SettingsDraft
from rlplan.frameworks.exports.export_groups import export_groups
from rlplan.frameworks.exports.export_plan import EXPORTS, export_plan
from rlplan.frameworks.keys.key_table import key_table
from rlplan.frameworks.readers.read_setup import read_setup
from rlplan.plans.schema.algorithm import Algorithm, ImportanceSampling
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.levers import LoraSpec
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads
from rlplan.profiles.library.imported import imported_job

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
PLANS = ("cpu-demo", "math-32b")
PLUGGED = ("trl", "verl", "slime", "vime")


def exported(tmp_path, name, framework, **options):
    return export_plan(EXAMPLES / f"{name}.yaml", framework, tmp_path, **options)


def written(tmp_path, export):
    for name, text in export.files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize("framework", EXPORTS)
@pytest.mark.parametrize("name", PLANS)
def test_no_key_is_unknown_or_dead(tmp_path, name, framework, plugin):
    export, table = exported(tmp_path, name, framework, plugin=plugin), key_table(framework)
    assert export.settings and all(key in table and table.dead(key) is None for key in export.settings)
    for decision in export.decisions:
        assert (decision.status == "mapped") == (decision.cost == ""), decision
        assert decision.status == "not expressible" or decision.key or decision.value


@pytest.mark.parametrize("key", ["actor_rollout_ref.rollout.over_sample_rate", "actor_rollout_ref.rollout.max_seqs"])
def test_a_dead_or_unknown_key_stops_an_export(key):
    with pytest.raises(AssertionError, match=key):
        SettingsDraft("verl").set(key, 1)


@pytest.mark.parametrize("framework", ["verl", "slime", "vime", "skyrl", "openrlhf"])
def test_what_is_written_reads_back_as_the_plan(tmp_path, framework):
    setup = read_setup(written(tmp_path, exported(tmp_path, "math-32b", framework)) / "run.sh", framework)
    assert (setup.framework, setup.prompts, setup.samples) == (framework, 128, 8)
    assert (setup.nodes, setup.gpus_per_node, setup.train_gpus, setup.colocated) == (8, 8, 64, True)
    assert (setup.rollout_tp, setup.engines, setup.max_response_tokens) == (8, 8, 16384)
    assert (setup.micro_batch_tokens, setup.recompute, setup.mini_batch_samples) == (16896, "full", 1024)
    assert {each.key for each in setup.left_aside if each.kind in ("dead", "unresolved")} <= {"source"}
    unknown = {each.key for each in setup.left_aside if each.kind == "unknown"}
    assert unknown <= {"trainer.v1.rlplan.plan"}  # our plug-in's own


def test_what_is_written_for_trl_reads_back_as_the_plan(tmp_path):
    setup = read_setup(written(tmp_path, exported(tmp_path, "math-32b", "trl")) / "grpo.yaml")
    assert (setup.prompts, setup.samples, setup.backend, setup.zero) == (128, 8, "fsdp", 3)
    assert (setup.train_gpus, setup.rollout_tp, setup.max_response_tokens) == (64, 8, 16384)
    assert [each for each in setup.left_aside if each.kind in ("dead", "unknown", "unresolved")] == []


@pytest.mark.parametrize("framework", PLUGGED)
def test_the_plug_in_runs_the_rounds_unless_it_is_left_out(tmp_path, framework):
    plugged = exported(tmp_path, "cpu-demo", framework)
    assert plugged.files["plan.yaml"] == (EXAMPLES / "cpu-demo.yaml").read_text()
    keys_only = exported(tmp_path, "cpu-demo", framework, plugin=False)
    assert not any("rlplan.frameworks" in text for text in keys_only.files.values())
    (rounds,) = [each for each in keys_only.decisions if each.decision.startswith("bias.mode")]
    assert rounds.status == "not expressible" and "+73%" in rounds.cost


def test_a_framework_without_a_plug_in_says_what_rounds_cost(tmp_path):
    for framework in ("skyrl", "openrlhf"):
        (rounds,) = [
            each
            for each in exported(tmp_path, "math-32b", framework).decisions
            if each.decision.startswith("bias.mode")
        ]
        assert rounds.status == "not expressible" and "145 ms" in rounds.cost


def test_layouts_that_differ_are_priced_by_the_simulator(tmp_path):
    source = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path)
    rounds = source.plan.job.rounds
    long = rounds.long.model_copy(update={"rollout": rounds.long.rollout.model_copy(update={"engines": 16, "tp": 4})})
    job = source.plan.job.model_copy(update={"rounds": rounds.model_copy(update={"long": long})})
    source = replace(source, plan=source.plan.model_copy(update={"job": job}))
    asked = []

    def price(changes):
        asked.append(dict(changes))
        return 0.052

    export = EXPORTS["verl"](ExportDraft("verl", source=source, price=price))
    (layout,) = [each for each in export.decisions if each.decision == "rounds.long.rollout"]
    assert layout.status == "not expressible" and "+5.2%" in layout.cost
    assert asked == [{"plan.job.rounds.long.rollout.tp": 8, "plan.job.rounds.long.rollout.engines": 8}]
    stated = EXPORTS["verl"](ExportDraft("verl", source=source))
    assert any("not 16 x tp 4" in each.cost for each in stated.decisions)


NAMED = {  # by framework: what says that it is GSPO, CISPO (None: it is not), and REINFORCE++-baseline
    "trl": (
        {"importance_sampling_level": "sequence", "loss_type": "grpo"}, {"loss_type": "cispo", "epsilon_high": 5.0},
        {"scale_rewards": "batch"},
    ),
    "verl": (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"},
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "cispo"},
        {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    ),
    "slime": (
        {"--advantage-estimator": "gspo"}, None,
        {"--advantage-estimator": "reinforce_plus_plus_baseline", "--normalize-advantages": True},
    ),
    "skyrl": (
        {"trainer.algorithm.policy_loss_type": "gspo"},
        {"trainer.algorithm.policy_loss_type": "cispo", "trainer.algorithm.cispo.cispo_eps_clip_high": 4.0},
        {"trainer.algorithm.advantage_batch_normalize": True},
    ),
    "openrlhf": (
        {"--actor.policy_loss_type": "gspo"}, None, {"--algo.advantage.estimator": "reinforce_baseline"},
    ),
}  # fmt: skip
NAMED["vime"] = NAMED["slime"]


@pytest.mark.parametrize("framework", EXPORTS)
def test_an_algorithm_has_the_frameworks_name_or_is_told_to_miss(tmp_path, framework):
    source, table = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path), key_table(framework)
    plain = dict(EXPORTS[framework](ExportDraft(framework, source=source)).settings)
    for name, expected in zip(("gspo", "cispo", "reinforce_plus_plus_baseline"), NAMED[framework], strict=True):
        bonus = {} if name.startswith("reinforce") else {"entropy_bonus": 0.01}
        bound = {} if name == "cispo" else {"dual_clip": 7.5}
        algorithm = Algorithm.model_validate({"name": name, "learning_rate": 1e-6, **bonus, **bound})
        job = source.job.model_copy(update={"algorithm": algorithm})
        export = EXPORTS[framework](ExportDraft(framework, source=replace(source, job=job)))
        assert all(key in table and table.dead(key) is None for key in export.settings)
        (told,) = [each for each in export.decisions if each.decision == "algorithm.name"]
        assert (told.status == "not expressible") == (expected is None)
        if expected is not None:
            assert [export.settings[key] for key in expected] == list(expected.values())
            assert [plain.get(key) for key in expected] != list(expected.values())
        values = export.settings.values()
        assert (0.01 in values) == bool(bonus)
        missing = (framework, name) == ("skyrl", "gspo")
        assert (7.5 in values) == (bool(bound) and not missing)


KLS = {  # by framework: settings of k3 in the loss, and of k1 in the reward (None: it has none)
    "trl": ({"beta": 0.03}, None),
    "verl": (
        {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_type": "low_var_kl"},
        {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.kl_coef": 0.03},
    ),
    "slime": ({"--use-kl-loss": True, "--kl-loss-coef": 0.03, "--kl-loss-type": "k3"}, None),
    "skyrl": (
        {"trainer.algorithm.use_kl_loss": True, "trainer.algorithm.kl_estimator_type": "k3"},
        {"trainer.algorithm.use_kl_in_reward": True, "trainer.algorithm.kl_loss_coef": 0.03},
    ),
    "openrlhf": (
        {"--algo.kl.use_loss": True, "--algo.kl.estimator": "k3"}, {"--algo.kl.init_coef": 0.03},
    ),
}  # fmt: skip
KLS["vime"] = KLS["slime"]


@pytest.mark.parametrize("framework", EXPORTS)
def test_a_kl_to_a_reference_is_exported_or_told_to_miss(tmp_path, framework):
    source, table = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path), key_table(framework)
    for kl, expected in zip(
        ({"coefficient": 0.03}, {"coefficient": 0.03, "estimator": "k1", "applied_to": "reward"}),
        KLS[framework],
        strict=True,
    ):
        algorithm = Algorithm.model_validate({"name": "grpo", "learning_rate": 1e-6, "kl": kl})
        job = source.job.model_copy(update={"algorithm": algorithm})
        export = EXPORTS[framework](ExportDraft(framework, source=replace(source, job=job)))
        assert all(key in table and table.dead(key) is None for key in export.settings)
        (told,) = [each for each in export.decisions if each.decision == "algorithm.kl"]
        assert (told.status == "not expressible") == (expected is None)
        assert {key: export.settings[key] for key in expected or {}} == (expected or {})
        assert (0.03 in export.settings.values()) == (expected is not None)


FEW_HAVE = {  # by framework: those of the job's keys that have no key there
    "trl": {"engine.kv_cache_dtype", "engine.max_num_batched_tokens"},
    "verl": {"rollout.min_p", "rollout.stop", "rollout.stop_token_ids", "model.revision"},
    "slime": {"rollout.min_p", "model.revision"},
    "skyrl": {"model.revision"},
    "openrlhf": {
        "rollout.top_k", "rollout.min_p", "rollout.stop", "rollout.stop_token_ids", "engine.kv_cache_dtype",
        "engine.max_num_batched_tokens", "model.revision",
    },
}  # fmt: skip
FEW_HAVE["vime"] = FEW_HAVE["slime"]


@pytest.mark.parametrize("framework", EXPORTS)
def test_keys_that_few_frameworks_have_are_exported_or_told(tmp_path, framework):
    source, table = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path), key_table(framework)
    said = {
        "rollout.top_p": 0.93, "rollout.top_k": 41, "rollout.min_p": 0.02, "rollout.stop": ["</a>, b", "\n\n"],
        "rollout.stop_token_ids": [151645], "engine.kv_cache_dtype": "fp8_e5m2",
        "engine.max_num_batched_tokens": 5120, "model.revision": "v1.1",
    }  # fmt: skip
    data = source.job.model_dump(mode="json")
    for name, value in said.items():
        section, key = name.split(".")
        data.setdefault(section, {})[key] = value
    export = EXPORTS[framework](ExportDraft(framework, source=replace(source, job=Job.model_validate(data))))
    assert all(key in table and table.dead(key) is None for key in export.settings)
    told = {each.decision: each for each in export.decisions}
    assert {name for name in said if told[name].status == "not expressible"} == FEW_HAVE[framework]
    for name in said.keys() - FEW_HAVE[framework]:
        value = export.settings[told[name].key]
        assert said[name] in (value, *(value.values() if isinstance(value, dict) else ()))
    plain = EXPORTS[framework](ExportDraft(framework, source=source))
    assert not said.keys() & {each.decision for each in plain.decisions}
    if framework == "skyrl":
        assert r"""generator.sampling_params.stop=["</a>, b","\n\n"]""" in export.files["run.sh"]
    if framework == "trl":
        told_ends = yaml.safe_load(export.files["grpo.yaml"])["generation_kwargs"]
        assert told_ends == {"stop": said["rollout.stop"], "stop_token_ids": [151645]}


@pytest.mark.parametrize("framework", EXPORTS)
def test_a_warm_start_is_the_model_that_is_exported(tmp_path, framework):
    source = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path)
    (tmp_path / "sft").mkdir()
    model = source.job.model.model_copy(update={"warm_start": str(tmp_path / "sft")})
    source = replace(source, job=source.job.model_copy(update={"model": model}))
    for expected, status in (("warm-start", "approximated"), ("sft", "mapped")):
        export = EXPORTS[framework](ExportDraft(framework, source=source))
        (told,) = [each for each in export.decisions if each.decision == "model.warm_start"]
        assert (told.value, told.status) == (expected, status) and expected in map(str, export.settings.values())
        assert ("rlplan export-model" in told.cost) == (status == "approximated")
        (tmp_path / "sft" / "config.json").write_text("{}")


@pytest.mark.parametrize("framework", EXPORTS)
def test_importance_weights_are_exported_for_bfloat16_on_gpus(tmp_path, framework):
    source = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path)
    told = []
    for correction in (None, ImportanceSampling(level="none")):
        algorithm = source.job.algorithm.model_copy(update={"importance_sampling": correction})
        job = source.job.model_copy(update={"algorithm": algorithm})
        decisions = EXPORTS[framework](ExportDraft(framework, source=replace(source, job=job))).decisions
        told.append([each.value for each in decisions if each.decision == "algorithm.importance_sampling"])
    assert told[0] and told[0] != told[1]


ADAPTERS = {
    "verl": {
        "actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.model.lora_alpha": 64,
        "actor_rollout_ref.model.target_modules": ["q_proj"], "actor_rollout_ref.model.lora.merge": False,
    },
    "trl": {"use_peft": True, "lora_r": 32, "lora_alpha": 64, "lora_target_modules": ["q_proj"], "lora_dropout": 0.0},
    "skyrl": {"trainer.policy.model.lora.rank": 32, "trainer.policy.model.lora.target_modules": ["q_proj"]},
    "openrlhf": {"--ds.lora.rank": 32, "--ds.lora.alpha": 64, "--ds.lora.target_modules": ["q_proj"]},
}  # fmt: skip


@pytest.mark.parametrize("framework", EXPORTS)
def test_adapters_are_exported_and_read_back_or_refused(tmp_path, framework):
    source = ExportSource.read(EXAMPLES / "math-32b.yaml", tmp_path)
    lora = LoraSpec(rank=32, alpha=64, target_modules=("q_proj",), sent="adapter")
    job = source.job.model_copy(update={"model": source.job.model.model_copy(update={"lora": lora})})
    draft = ExportDraft(framework, source=replace(source, job=job))
    if framework not in ADAPTERS:
        with pytest.raises(InputError, match=rf"model.lora: {framework} trains no adapters; export to verl"):
            EXPORTS[framework](draft)
        return
    export = EXPORTS[framework](draft)
    assert {key: export.settings[key] for key in ADAPTERS[framework]} == ADAPTERS[framework]
    (told,) = [each.status for each in export.decisions if each.decision == "model.lora.sent"] or ["mapped"]
    assert (told == "approximated") == (framework in ("trl", "openrlhf")), "who sends merged weights only says so"
    file = "grpo.yaml" if framework == "trl" else "run.sh"
    setup = read_setup(written(tmp_path, export) / file, framework)
    text = imported_job(setup, None, None, tmp_path).documents.files["job.yaml"]
    assert loads(text, Job).model.lora == lora.model_copy(update={"sent": "merged"})
    if framework == "trl":
        assert "peft_config=get_peft_config(model)" in export.files["train.py"]
        ast.parse(export.files["train.py"])


def test_megatron_gets_a_tp_that_fits(tmp_path):
    export = exported(tmp_path, "math-32b", "slime")
    (tp,) = [each for each in export.decisions if each.decision == "train.tp"]
    # 32.8B parameters: 6 bytes of each on a replica are 197 GB, of which half of an 80 GB GPU holds an eighth.
    assert (tp.status, export.settings["--tensor-model-parallel-size"]) == ("approximated", 8)


@pytest.mark.parametrize("framework", EXPORTS)
def test_files_are_what_they_are_called(tmp_path, framework):
    for name, text in exported(tmp_path, "cpu-demo", framework).files.items():
        if name.endswith(".py"):
            ast.parse(text)
        elif name.endswith(".yaml"):
            assert isinstance(yaml.safe_load(text), dict)


def test_the_reward_file_scores_by_the_jobs_own_function(tmp_path):
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    namespace = {"__file__": str(out / "reward.py"), "__name__": "reward"}
    exec(
        compile(export_plan(EXAMPLES / "cpu-demo.yaml", "trl", out).files["reward.py"], "reward.py", "exec"), namespace
    )
    row = json.loads((EXAMPLES / "cpu-demo" / "data.jsonl").read_text().splitlines()[0])
    own = namespace["score"](row["prompt"], "nothing", row["answer"])
    assert namespace["reward"]([row["prompt"]], ["nothing"], [json.dumps(row["answer"])]) == [own]


@pytest.mark.parametrize("framework", EXPORTS)
def test_jobs_of_a_group_get_their_placement(framework):
    exports, table = export_groups(EXAMPLES / "groups.yaml", framework), key_table(framework)
    assert set(exports) == {"agent-4b", "agent-8b", "code-14b", "math-32b", "math-7b"}
    for export in exports.values():
        assert all(key in table and table.dead(key) is None for key in export.settings)
        assert any(each.decision.endswith(".turns") and each.cost for each in export.decisions)
    if framework == "slime":
        assert exports["math-32b"].settings["--rollout-num-gpus"] == 16
        assert exports["math-32b"].settings["--actor-num-nodes"] == 2
