"""Models of checkpoints as folders of Hugging Face: the same weights, with what belongs beside them, or nothing."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlplan.executor.records import model_export
from rlplan.executor.records.checkpoints import checkpoints, held
from rlplan.executor.records.model_export import export_model
from rlplan.executor.records.run_checkpoints import RunCheckpoints, Saving
from rlplan.executor.records.warm_start import starting_weights
from rlplan.plans.schema.job import JobPaths
from rlplan.plans.yaml.errors import InputError, RunFailed

from ...cli.command_line import data, printed, refused, rlplan
from ...full_disk import full_disk
from ..trainer.test_trainer_rank import agreeing, new_trainer, random_groups, weights, write_model
from .exportable_runs import OneRank, begin_run, save


def loaded(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def trained_run(folder, family="qwen2", **changes):
    """A run with a checkpoint of step 1, and the trainer that wrote it."""
    model = write_model(folder / "model", family, **changes)
    run, trainer = begin_run(folder, model), new_trainer(model)
    trainer.step(random_groups(3, seed=4))
    save(run, 1, OneRank(trainer))
    return run, trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3_moe"])
def test_transformers_loads_the_trainers_weights_bit_for_bit(tmp_path, family):
    run, trainer = trained_run(tmp_path, family)
    told = export_model(run, tmp_path / "out", shard="9KB")
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(files) > 3 and sorted(set(index["weight_map"].values())) == files
    stored = {name: tensor for file in files for name, tensor in load_file(tmp_path / "out" / file).items()}
    wanted = weights(trainer, tmp_path)
    assert stored.keys() == wanted.keys() == index["weight_map"].keys()
    assert all(torch.equal(stored[name], wanted[name]) for name in wanted)
    assert ("lm_head.weight" in stored) == (family == "llama"), "what is tied is written once"
    assert sum(tensor.nbytes for tensor in stored.values()) == index["metadata"]["total_size"]
    assert told.parameters == trainer.parameters() == sum(tensor.numel() for tensor in stored.values())
    assert told.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    policy = loaded(tmp_path / "out")
    for (name, ours), (_, theirs) in zip(trainer._model.named_parameters(), policy.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    metrics = trainer.step(agreeing(tmp_path / "out", random_groups(3, seed=8)))
    assert metrics["logprob_max_abs_diff"] <= 1e-5


@pytest.mark.parametrize(
    ("of_job", "asked", "written"), [("bfloat16", None, "bfloat16"), ("bfloat16", "float16", "float16")]
)
def test_weights_are_of_the_jobs_type_or_of_the_one_asked_for(tmp_path, of_job, asked, written):
    model = write_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"_name_or_path": "/home/me/model"}))
    run, trainer = begin_run(tmp_path, model, dtype=of_job), new_trainer(model)
    save(run, 1, OneRank(trainer))
    assert export_model(run, tmp_path / "out", dtype=asked).dtype == written
    policy, kind = loaded(tmp_path / "out"), getattr(torch, written)
    pairs = zip(trainer._model.parameters(), policy.parameters(), strict=True)
    assert all(torch.equal(ours.to(kind), theirs) for ours, theirs in pairs)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == written and "_name_or_path" not in config


def test_training_begins_with_weights_of_a_run_or_a_folder(trained, tmp_path):
    run, trainer = trained
    model = run.parent / "job" / "model"

    def begun(start, home=tmp_path / "home", resume=False):
        return starting_weights(JobPaths(str(model), None, model, tmp_path, warm_start=start), home, resume)

    assert begun(None) == str(model) and begun(model) == str(model), "as they are"
    found = begun(run)
    assert found == str(tmp_path / "home" / "warm-start")
    pairs = zip(trainer._model.parameters(), loaded(found).parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    (tmp_path / "home" / "warm-start" / "mark").touch()
    assert begun(run, resume=True) == found and (tmp_path / "home" / "warm-start" / "mark").exists()
    assert begun(run) == found and not (tmp_path / "home" / "warm-start" / "mark").exists(), "an earlier start's"
    other = Path(write_model(tmp_path / "other", "llama"))
    for start, why in (
        (other, "has model_type llama, and the job's model qwen2; name"),
        (tmp_path, "holds no run"),
    ):
        with pytest.raises(InputError, match=why):
            begun(start)


def test_the_folder_has_what_belongs_beside_the_weights_and_no_path(run, tmp_path):
    model = run.parent / "job" / "model"
    for name in ("tokenizer.json", "chat_template.jinja", "LICENSE"):
        (model / name).write_text("{}")
    for name in ("trainer_state.json", "model.safetensors.index.json", "README.md", "pytorch_model.bin"):
        (model / name).write_text("{}")
    (model / "generation_config.json").unlink(missing_ok=True)
    out = tmp_path / "new" / "out"
    export_model(run, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "LICENSE", "README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json",
    ]  # fmt: skip
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    card = (out / "README.md").read_text()
    assert str(run.parent) not in "".join(path.read_text() for path in out.iterdir() if path.suffix in (".md", ".json"))
    assert card.count("| `") == 3 and "# tiny, step 1\n" in card and "`model` after 1 step of" in card
    assert "| 1 | 0.0100 | 11.0 | 40 |" in card and "| 2 |" not in card, "steps beyond the checkpoint's are not its own"


def test_the_card_sums_up_many_steps_in_few_rows(trained, tmp_path):
    (run, trainer), _ = trained, begin_run(tmp_path, trained[0].parent / "model")
    save(tmp_path / "run", 30, OneRank(trainer))
    figures = {"prompts": 4, "samples": 2, "pass_at": {"1": [0.5, 0.1]}, "mean_tokens": 9.0, "truncated": 0.0}
    with (tmp_path / "run" / "trace.jsonl").open("a") as trace:
        for number in (20, 40):
            told = {
                "event": "evaluation",
                "t_s": 1.0,
                "step": number,
                "reward": [0.25, 0.05],
                "failed": 0,
                "seconds": 1.0,
            }
            trace.write(json.dumps(told | figures) + "\n")
    (tmp_path / "job" / "data.jsonl").unlink()
    export_model(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    rows = [line for line in card.splitlines() if " to " in line]
    assert len(rows) == 10 and rows[-1] == "| 28 to 30 | 0.2900 | 39.0 | 40 |"
    assert card.count("reward 0.250 ± 0.050") == 1, "later ones are not the checkpoint's"
    assert "| data |" not in card and "| job |" in card
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(InputError, match=r"does not lead to the job of its plan; give the model .* with --model"):
        export_model(tmp_path / "run", tmp_path / "alone")
    with pytest.raises(InputError, match="with --dtype"):
        export_model(tmp_path / "run", tmp_path / "alone", model=str(run.parent / "model"))
    export_model(tmp_path / "run", tmp_path / "alone", model=str(run.parent / "model"), dtype="float32")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "alone"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_command_says_what_it_wrote_and_what_is_not_there(trained, run, tmp_path):
    other = shutil.copytree(run, tmp_path / "runs" / "a")
    shutil.copytree(run.parent / "job", tmp_path / "runs" / "job")
    save(other, 2, OneRank(trained[1]))
    told = data("export-model", other, tmp_path / "one", "--step", 1)
    assert (told["step"], told["dtype"], told["out"]) == (1, "float32", str(tmp_path / "one"))
    text = printed("export-model", other, tmp_path / "two", "--dtype", "bfloat16")
    assert text.startswith(f"step 2 in {tmp_path / 'two'}: ") and " in bfloat16, " in text and text.count("\n") == 1
    before = sorted(tmp_path.iterdir())
    for arguments, words in (
        ((other, tmp_path / "one"), (f"{tmp_path / 'one'}: exists", "name a new folder")),
        ((other, tmp_path / "three", "--step", 7), ("no checkpoint of step 7; there are those of steps 1-2",)),
        ((tmp_path / "runs", tmp_path / "three"), ("holds 1 run: a; name the folder of one",)),
        ((tmp_path / "one", tmp_path / "three"), ("holds no run",)),
        ((tmp_path / "none", tmp_path / "three"), ("no such run folder",)),
        ((other, tmp_path / "three", "--model", tmp_path), ("has no model that transformers reads",)),
    ):
        refused(rlplan("export-model", *arguments), *words)
    assert sorted(tmp_path.iterdir()) == before
    shutil.rmtree(other / "checkpoints")
    refused(rlplan("export-model", other, tmp_path / "three"), "has no checkpoint yet")


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_refused(trained, run, tmp_path):
    wider = write_model(tmp_path / "wider", intermediate_size=64)
    with pytest.raises(
        InputError, match=r"another model: only .* has model\.layers\.0\.mlp\.down_proj\.weight of shape"
    ):
        export_model(run, tmp_path / "out", model=wider)
    other = shutil.copytree(run, tmp_path / "run")
    shutil.copytree(run.parent / "job", tmp_path / "job")
    save(other, 2, OneRank(trained[1]))
    part = next((other / "checkpoints" / "step-000002" / "trainer").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[::-1])
    with pytest.raises(
        InputError, match=r"step-000002: is damaged \(.*other bytes.*\); export another with --step: 1$"
    ):
        export_model(other, tmp_path / "out")
    (part.parents[1] / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"is damaged \(.*manifest\.json is missing\)"):
        export_model(other, tmp_path / "out")
    assert export_model(other, tmp_path / "out", 1).step == 1


def test_a_full_disk_or_a_removed_checkpoint_leaves_nothing(run, tmp_path, monkeypatch):
    target = tmp_path / "models" / "out"
    with full_disk(), pytest.raises(RunFailed, match=r"models/out cannot be written \(.*\); make room"):
        export_model(run, target)
    monkeypatch.setattr(model_export, "SPARE_BYTES", 10**18)
    with pytest.raises(RunFailed, match=r"the disk of .* free; make room"):
        export_model(run, target)
    monkeypatch.undo()
    other = shutil.copytree(run, tmp_path / "run")
    shutil.copytree(run.parent / "job", tmp_path / "job")

    def remove(text, _):
        if text == "writing weights":
            shutil.rmtree(other / "checkpoints" / "step-000001", ignore_errors=True)

    with pytest.raises(InputError, match="was removed while it was read"):
        export_model(other, target, progress=remove)
    assert list(target.parent.iterdir()) == []


def test_checkpoints_that_are_read_or_to_be_kept_are_not_dropped(tmp_path, trained):
    run, trainer = begin_run(tmp_path, trained[0].parent / "model"), OneRank(trained[1])
    events = []
    keeper = RunCheckpoints(run, trainer, lambda name, **fields: events.append((name, fields)), Saving(keep_every=2))

    async def write(step):
        assert keeper.due(step, 1)
        await keeper.begin(step, {"step": step})
        await keeper.written()

    def there():
        return [int(folder.name[-6:]) for folder in checkpoints(run)]

    async def body():
        for step in range(4):
            await write(step)
        assert there() == [2, 3]
        with held(checkpoints(run)[1]):
            for step in (4, 5):
                await write(step)
            assert there() == [2, 3, 4, 5], "3 is being read, 2 is to be kept"
        await write(6)
        assert there() == [2, 4, 5, 6]

    asyncio.run(body())
    resumed = RunCheckpoints(run, trainer, lambda *_, **__: None)
    asyncio.run(resumed.begin(7, {"step": 7}))
    assert not resumed.due(8, 5) and there()[:2] == [2, 4], "what was marked stays, whoever goes on"
    (run / "checkpoints" / "step-000006" / "kept").unlink()
    keeper.loaded(6)
    assert (run / "checkpoints" / "step-000006" / "kept").exists()
    assert [fields["step"] for name, fields in events if name == "checkpoint"] == list(range(7))


def test_a_run_writes_the_models_that_are_due_and_its_last(tmp_path, trained, monkeypatch):
    run, trainer = begin_run(tmp_path, trained[0].parent / "model"), trained[1]
    events = []
    keeper = RunCheckpoints(
        run, OneRank(trainer), lambda name, **fields: events.append((name, fields)), Saving(model_every=2)
    )
    assert [step for step in range(6) if keeper.due(step, 100)] == [0, 2, 4], "0 is the first checkpoint"

    async def body(*steps):
        for step in steps:
            await keeper.begin(step, {"step": step})
            await keeper.written()
        await keeper.last_model()

    def models():
        return sorted(path.name for path in (run / "models").iterdir())

    stale = run / "models" / "step-000002"
    stale.mkdir(parents=True)
    (stale / "old").touch()
    (run / "models" / ".step-000002.partial-killed").mkdir()
    asyncio.run(body(0, 1, 2, 3))
    assert models() == ["step-000002", "step-000003"] and not (stale / "old").exists()
    ours, theirs = weights(trainer, tmp_path), load_file(run / "models" / "step-000003" / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [(name, sorted(fields)) for name, fields in events if name != "checkpoint"] == [
        ("model", ["bytes", "export_s", "step"])
    ] * 2
    asyncio.run(keeper.last_model())
    assert len(events) == 6, "the last one is there already"
    shutil.rmtree(run / "models" / "step-000002")

    async def resume():
        keeper.loaded(2)
        await keeper.last_model()

    asyncio.run(resume())
    assert events[-1][1]["step"] == 2 and len(models()) == 2, "a run that was killed before writes it"
    with monkeypatch.context() as patch:
        patch.setattr(model_export, "SPARE_BYTES", 10**18)
        asyncio.run(body(4))
    assert events[-1][0] == "model_failed" and keeper.notes[0].startswith("no model of step 4: the model needs ")
    assert models() == ["step-000002", "step-000003"] and keeper.fault is None
    keeper.close()
    asyncio.run(body(6))
    assert models() == ["step-000002", "step-000003"] and len(keeper.notes) == 2, "a run that ends waits for none"
    assert checkpoints(run)[-1].name == "step-000006"
