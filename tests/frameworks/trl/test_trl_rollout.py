"""A GRPOTrainer that runs a plan's rounds: rows, loss, log and checkpoints. Marked, since it takes real trainers."""

import copy
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM, TrainerCallback

from rlplan.frameworks.trl.trl_rollout import KindScale, LateRows, PlannedTraining, plan_trainer
from rlplan.plans.schema.planned_job import KindNorms
from rlplan.plans.yaml.errors import InputError

from .tiny_trainer import CAP, CUTOFF, TOKENS, N, P, dataset, rewards, trainer_of, write_model, write_plan


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


class Follows(TrainerCallback):
    """Notes each step's rows, kind and gradient, and the weights that it began with."""

    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []
        rollout = trainer.rollout_func

        def noted(prompts, trainer):
            before = copy.deepcopy(trainer.model.state_dict())
            output = rollout(prompts, trainer)
            self.steps.append(SimpleNamespace(prompts=list(prompts), output=output, before=before))
            return output

        trainer.rollout_func = noted
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        named = self.trainer.model.named_parameters()
        self.steps[-1].gradient = {name: weight.grad.clone() for name, weight in named if weight.grad is not None}

    def rounds(self):
        return [(step.prompts, step.output["completion_ids"]) for step in self.steps]


def history(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """A run of eight steps with checkpoints, what it did, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    trainer = trainer_of(model, folder)
    planned = plan_trainer(trainer, write_plan(folder))
    follows = Follows(trainer)
    trainer.train()
    return SimpleNamespace(trainer=trainer, planned=planned, follows=follows, folder=folder)


@pytest.mark.engine
def test_a_trainer_runs_short_and_long_rounds_and_logs_them(trained):
    long = history(trained.trainer, "rounds/long")
    assert len(long) == 8 and set(long) == {0.0, 1.0}
    for kind, step in zip(long, trained.follows.steps, strict=True):
        longest = max(map(len, step.output["completion_ids"]))
        assert longest > CUTOFF if kind else longest <= CUTOFF
        assert len(set(step.prompts)) <= P and len(step.prompts) == P * N
    issued, counted = history(trained.trainer, "rounds/issued_prompts"), 0
    for place, prompts in enumerate(issued):
        parts = [
            history(trained.trainer, f"rounds/{fate}_prompts")[place] for fate in ("trained", "deferred", "returned")
        ]
        assert sum(parts) == prompts
        counted += parts[0]
    waiting = history(trained.trainer, "rounds/waiting_prompts")
    assert waiting[-1] == len(trained.planned.schedule.deferred)
    tokens = sum(
        sum(map(len, step.output["completion_ids"])) for step in trained.follows.steps if "env_mask" not in step.output
    )
    assert trained.planned.state()["trained_tokens"] >= tokens > 0
    assert history(trained.trainer, "rounds/length_ratio")[-1] == pytest.approx(
        trained.planned.state()["trained_tokens"] / (counted * N) / (TOKENS / (P * N)), rel=1e-3
    )


@pytest.mark.engine
def test_a_token_weighs_the_same_in_short_and_long_rounds(model, trained):
    """Gradients against the formula: advantages times log-probabilities, summed over tokens, over the plan's tokens."""
    reference = LlamaForCausalLM.from_pretrained(model)
    checked = set()
    for kind, step in zip(history(trained.trainer, "rounds/long"), trained.follows.steps, strict=True):
        reference.load_state_dict(step.before)
        reference.zero_grad()
        output = step.output
        scores = torch.tensor(
            rewards(step.prompts, output["completion_ids"], output["completion_ids"], [p[5:-2] for p in step.prompts])
        )
        groups = scores.view(-1, N)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        loss, weights = torch.zeros(()), output.get("env_mask")
        for place, (text, response) in enumerate(zip(output["prompt_ids"], output["completion_ids"], strict=True)):
            logits = reference(torch.tensor([text + response])).logits[0, len(text) - 1 : -1]
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
            mask = 1.0 if weights is None else torch.tensor(weights[place])
            loss = loss - advantages[place] * (chosen * mask).sum() / TOKENS
        loss.backward()
        expected = {name: weight.grad for name, weight in reference.named_parameters()}
        clip = min(1.0, 1.0 / (sum(float(grad.square().sum()) for grad in expected.values()) ** 0.5 + 1e-6))
        for name, grad in step.gradient.items():
            torch.testing.assert_close(grad, expected[name] * clip, rtol=2e-3, atol=1e-6)
        checked.add(kind)
    assert checked == {0.0, 1.0}


@pytest.mark.engine
def test_a_resumed_run_goes_on_as_if_never_stopped(model, trained):
    checkpoint = trained.folder / "checkpoint-3"
    resumed = trainer_of(model, trained.folder / "resumed")
    planned = plan_trainer(resumed, write_plan(trained.folder))
    follows = Follows(resumed)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    kept = yaml.safe_load((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["PlannedRoundsState"]
    assert len(yaml.safe_load(kept["attributes"]["rounds"])["deferred"]) > 0
    assert follows.rounds() == trained.follows.rounds()[3:]
    assert planned.state() == trained.planned.state()
    expected = trained.trainer.model.state_dict()
    for name, weight in resumed.model.state_dict().items():
        assert torch.equal(weight, expected[name])


@pytest.mark.engine
def test_a_checkpoint_of_other_prompts_or_without_rounds_is_refused(model, trained, tmp_path):
    fewer = trainer_of(model, tmp_path, rows=30)
    plan_trainer(fewer, write_plan(tmp_path))
    with pytest.raises(InputError, match="another data set: its prompts are not the job's; resume with the data set"):
        fewer.train(resume_from_checkpoint=str(trained.folder / "checkpoint-3"))
    plain = trainer_of(model, tmp_path / "plain", max_steps=1, save_steps=1)
    plain.train()
    later = trainer_of(model, tmp_path / "later")
    plan_trainer(later, write_plan(tmp_path))
    with pytest.raises(InputError, match="the checkpoint of step 1 was written without a plan"):
        later.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-1"))


@pytest.mark.engine
def test_the_last_rounds_train_what_waits_with_empty_places(model, tmp_path, caplog):
    trainer = trainer_of(model, tmp_path, max_steps=7, save_strategy="no", seed=5)
    planned = plan_trainer(trainer, write_plan(tmp_path))
    follows = Follows(trainer)
    trainer.train()
    trained, long = history(trainer, "rounds/trained_prompts"), history(trainer, "rounds/long")
    assert long[-1] == 1.0 and planned.schedule.deferred == ()
    assert min(trained) < P
    for step, groups in zip(follows.steps, trained, strict=True):
        assert ("env_mask" in step.output) == (groups < P)
        assert sum(any(mask) for mask in step.output.get("env_mask", [])) in (0, groups * N)


@pytest.mark.engine
def test_evaluation_and_races_decode_by_the_same_engine(model, tmp_path):
    trainer = trainer_of(
        model, tmp_path, evaluated=dataset(4), max_steps=2, save_strategy="no", loss_type="grpo",
        eval_strategy="steps", eval_steps=2,
        per_device_eval_batch_size=4,
    )  # fmt: skip
    plan_trainer(trainer, write_plan(tmp_path, "race"))
    trainer.train()
    assert len(history(trainer, "eval_completions/mean_length")) == 1
    assert history(trainer, "rounds/issued_prompts")[0] == P + 1
    assert trainer.max_completion_length == CAP


@pytest.mark.engine
@pytest.mark.parametrize(
    ("options", "plan", "said"),
    [
        ({"loss_type": "dapo"}, {}, 'loss_type "dapo" divides by the tokens of its own batch.*Set loss_type="dr_grpo"'),
        ({"scale_rewards": "batch"}, {}, 'set "group" or "none"'),
        ({"entropy_coef": 0.01}, {}, "set entropy_coef=0"),
        ({"num_iterations": 2}, {}, "a round is one optimizer step"),
        ({"dataloader_num_workers": 1}, {}, "leave dataloader_num_workers at 0"),
        ({"accelerator_config": {"dispatch_batches": True}}, {}, "leave .* dispatch_batches unset"),
        ({"restore_callback_states_from_checkpoint": True}, {}, "leave restore_callback_states_from_checkpoint off"),
        ({"rows": 8}, {}, "its rounds need 10 prompts, and the data set has 8"),
        ({}, {"prompts": 8}, "the plan is for 8 prompts a step, and the trainer is set to 4"),
        ({}, {"cutoff": CAP}, "the plan's cutoff is 40 tokens"),
    ],
)
def test_a_trainer_that_does_not_fit_is_refused(model, tmp_path, options, plan, said):
    with pytest.raises(InputError, match=said):
        plan_trainer(trainer_of(model, tmp_path, **options), write_plan(tmp_path, **plan))


@pytest.mark.engine
def test_a_plain_plan_takes_any_loss(model, tmp_path):
    trainer = trainer_of(model, tmp_path, loss_type="dapo", max_steps=1, save_strategy="no")
    assert isinstance(plan_trainer(trainer, write_plan(tmp_path, "sync")), PlannedTraining)
    with pytest.raises(InputError, match="has a rollout_func already"):
        plan_trainer(trainer, tmp_path / "sync.yaml")
    with pytest.raises(InputError, match="a SimpleNamespace is no GRPOTrainer"):
        plan_trainer(SimpleNamespace(), tmp_path / "sync.yaml")
    trainer.train()
    assert history(trainer, "rounds/trained_prompts") == [P]


class SleepingVllm:
    """What TRL keeps of a vLLM that sleeps between rounds; notes what is asked of it."""

    enable_sleep_mode = _llm_weights_sleeping = True

    def __init__(self):
        self.asked, self.generation_kwargs = [], {}
        self.llm = SimpleNamespace(
            llm_engine=None,
            wake_up=lambda tags: self.asked.append(f"wake {tags}"),
            sleep=lambda level: self.asked.append(f"sleep {level}"),
        )

    def sync_weights(self):
        self.asked.append("weights")
        self._llm_weights_sleeping = False


def test_a_vllm_that_sleeps_gets_weights_and_cache_for_a_round():
    vllm = SleepingVllm()
    rule = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}
    trainer = SimpleNamespace(
        **rule, use_vllm=True, vllm_generation=vllm, accelerator=SimpleNamespace(num_processes=1),
        state=SimpleNamespace(global_step=3), _last_loaded_step=3,
    )  # fmt: skip
    planned = SimpleNamespace(_trainer=trainer)
    for step in (3, 3, 4):
        trainer.state.global_step = step
        with PlannedTraining._engine(planned) as engine:
            assert not engine.busy
            vllm.asked.append("round")
    assert vllm.asked == ["weights", "wake ['kv_cache']", "round", "sleep 2"] * 3
    assert trainer._last_loaded_step == 4 and vllm._llm_weights_sleeping


def test_only_the_second_moment_takes_gradients_over_their_norm():
    rate, decay, (beta1, beta2), shares = 0.1, 0.2, (0.9, 0.95), [2.0, 0.5, 2.0]
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=rate, weight_decay=decay, betas=(beta1, beta2), eps=0.0)
    args = SimpleNamespace(max_grad_norm=1.5)
    scale = KindScale(args, KindNorms(short=0.5, long=2.0))
    scale.attach(SimpleNamespace(optimizer=optimizer))
    scale.attach(optimizer)
    expected, first, second = weight.detach().clone(), 0.0, 0.0
    for step, share in enumerate(shares, 1):
        scale.begin("long" if share == 2.0 else "short")
        assert args.max_grad_norm == 1.5 * share
        gradient = torch.tensor([0.3 * step, -0.7], dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        scale.end()
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * (gradient / share) ** 2
        moved = rate * (first / (1 - beta1**step)) / (second / (1 - beta2**step)).sqrt()
        expected = expected * (1 - rate * decay) - moved
        torch.testing.assert_close(weight.detach(), expected)
        torch.testing.assert_close(optimizer.state[weight]["exp_avg"], first)
    assert args.max_grad_norm == 1.5
    assert optimizer.param_groups[0]["lr"] == rate and optimizer.param_groups[0]["weight_decay"] == decay


def test_other_optimizers_are_left_alone_and_named(caplog):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    KindScale(SimpleNamespace(max_grad_norm=0.0), KindNorms(short=0.5, long=2.0)).attach(optimizer)
    assert "steps of SGD are not scaled by kind of round" in caplog.text


def test_rows_are_decoded_when_one_is_read_once():
    asked = []

    def decode(size):
        asked.append(size)
        return [{"prompt": f"p{place}", "pair": place} for place in range(size)]

    rows = LateRows(9, decode)
    first, second = rows.__getitems__([5, 5, 5]), rows.__getitems__([2])
    assert len(rows) == 9 and asked == []
    assert [row["prompt"] for row in first] == ["p0", "p1", "p2"] and asked == [3]
    assert "images" not in second[0] and list(second[0]) == ["prompt", "pair"] and asked == [3, 1]
    first[1]["note"] = 7
    assert first[1].get("note") == 7 and first[0].get("note") is None
