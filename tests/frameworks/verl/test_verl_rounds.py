"""The rounds of a plan inside verl, without verl: settings, steps of a run, its checkpoints."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from rlplan.frameworks.drive_round import DecodedSample, drive_round
from rlplan.frameworks.verl.verl_rounds import (
    STATE,
    VerlRounds,
    divide_by_constants,
    name_parts,
    plan_of,
)
from rlplan.plans.yaml.errors import InputError, RunFailed

PLAN = Path(__file__).parents[2] / "corpus" / "recorded" / "exact" / "plan.yaml"


def configuration(**changes):
    config = {
        "actor_rollout_ref": {
            "rollout": {"n": 4, "response_length": 1024, "agent": {"default_agent_loop": "single_turn_agent"}},
            "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None, "ppo_mini_batch_size": 8},
        },
        "critic": {"loss_agg_mode": "seq-mean-token-mean", "loss_scale_factor": None},
        "data": {"train_batch_size": 8},
        "algorithm": {"filter_groups": {"enable": False, "metric": None}},
        "skip": {"rollout_tq": {"enable": False}},
        "reward": {"reward_model": {"enable": False, "enable_resource_pool": False}},
        "trainer": {"v1": {"sampler": {"custom_sampler": {"path": None, "name": None}}, "rlplan": {"plan": str(PLAN)}}},
    }
    for path, value in changes.items():
        *parts, last = path.split("__")
        place = config
        for part in parts:
            place = place[part]
        place[last] = value
    return config


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_plan_has_to_fit_the_trainer():
    planned = plan_of(configuration())
    assert (planned.spec.mode, planned.spec.cutoff_tokens, planned.spec.short_prompts) == ("exact", 272, 13)
    with pytest.raises(InputError, match="the plan is for 8 prompts a step, and the trainer is set to 16"):
        plan_of(configuration(data__train_batch_size=16))
    with pytest.raises(InputError, match="cutoff is 272 tokens"):
        plan_of(configuration(actor_rollout_ref__rollout__response_length=272))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainer__v1__rlplan": None}, r"add \+trainer.v1.rlplan.plan=plan.yaml"),
        ({"actor_rollout_ref__rollout__agent__default_agent_loop": "tool_agent"}, "tool_agent does not go with"),
        ({"skip__rollout_tq__enable": True}, "skip.rollout_tq.enable=true"),
        ({"algorithm__filter_groups": {"enable": True, "metric": "acc"}}, "set it to reward"),
        (
            {
                "algorithm__filter_groups": {"enable": True, "metric": "reward"},
                "reward__reward_model": {"enable": True, "enable_resource_pool": False},
            },
            "enable_resource_pool=true",
        ),
    ],
)
def test_what_rounds_cannot_do_is_refused_in_a_line(changes, said):
    with pytest.raises(InputError, match=said) as raised:
        plan_of(configuration(**changes))
    assert "\n" not in str(raised.value)


def test_verl_is_told_where_its_parts_are_and_no_other_is_replaced():
    config = configuration()
    name_parts(config)
    name_parts(config)  # again, as a trainer that is made anew does
    assert config["trainer"]["v1"]["sampler"]["custom_sampler"]["name"] == "RoundBuffer"
    assert config["actor_rollout_ref"]["rollout"]["agent"]["agent_loop_manager_class"].endswith(".PlannedManager")
    with pytest.raises(InputError, match=r"custom_sampler\.name=Mine"):
        name_parts(configuration(trainer__v1__sampler__custom_sampler={"path": None, "name": "Mine"}))


def test_the_loss_of_a_step_is_divided_by_the_plans_tokens():
    config, planned = configuration(), plan_of(configuration())
    changed = divide_by_constants(config, planned)
    actor = config["actor_rollout_ref"]["actor"]
    assert actor["loss_agg_mode"] == "seq-mean-token-sum-norm" and "loss_scale_factor" in changed
    # verl divides by the planned samples of a mini-batch, here those of a step, and by the factor.
    divisor = actor["ppo_mini_batch_size"] * 4 * actor["loss_scale_factor"]
    assert divisor == pytest.approx(planned.loss.tokens, rel=0.5 / actor["loss_scale_factor"])
    assert config["critic"]["loss_agg_mode"] == "seq-mean-token-mean"
    assert divide_by_constants(config, planned) is None


@pytest.mark.parametrize(
    ("mode", "factor", "stays"),
    [
        ("seq-mean-token-sum-norm", None, False),
        ("seq-mean-token-sum-norm", 100, True),
        ("seq-mean-token-mean", None, True),
        ("token-sum", None, True),
    ],
)
def test_a_loss_that_divides_by_constants_stays(mode, factor, stays):
    config = configuration(actor_rollout_ref__actor={"loss_agg_mode": mode, "loss_scale_factor": factor})
    assert (divide_by_constants(config, plan_of(config)) is None) is stays


# -- rounds ------------------------------------------------------------------------------------------------------------


class Run:
    """Steps of a run on an engine that ends a sample at once, at a random length."""

    def __init__(self, rows=60, seed=3):
        self.rounds = VerlRounds(plan_of(configuration()), rows, 1)
        self.random, self.trained, self.keys = random.Random(seed), Counter(), set()

    async def decode(self, issue, before, max_tokens):
        whole = before.sample if before else 1 + int(self.random.expovariate(1 / 120))
        return DecodedSample(whole, min(whole, max_tokens), whole > max_tokens)

    async def score(self, sample):
        return float(sample % 2)

    def drive(self, machine, uid):
        asyncio.run(drive_round(machine, self.decode, self.score))

    def step(self, step, steps):
        groups, figures = self.rounds.step(step, steps - step + 1, self.drive)
        for group in groups:
            self.trained[int(group.prompt)] += 1
            assert len(group.keys) == 4
            self.keys.update(group.keys)
        return figures


def test_the_last_steps_train_what_was_deferred():
    run, steps = Run(), 45
    figures = [run.step(step, steps) for step in range(1, steps + 1)]
    assert any(one["rlplan/deferred_prompts"] for one in figures) and figures[-1]["rlplan/deferred_prompts"] == 0
    assert {one["rlplan/long_round"] for one in figures} == {0.0, 1.0}
    assert len(run.keys) == 4 * sum(run.trained.values()), "a key stands for one sample"
    assert all(key.count("_") == 2 and key.split("_")[0].count(".") == 3 for key in run.keys)
    state = run.rounds.schedule.state()
    closed = state["next_epoch"] - len(state["epochs"])
    assert closed >= 3
    for row in range(60):
        assert run.trained[row] == closed + sum(f"{row:02d}" in epoch["settled"] for epoch in state["epochs"])


def test_a_queue_that_is_drained_early_leaves_steps_to_fresh_prompts():
    run = Run()
    run.step(1, 40)
    run.rounds.schedule.drain()
    while run.rounds.schedule.deferred:
        run.step(2, 40)
    assert run.step(3, 40)["rlplan/long_round"] == 0.0


def test_a_checkpoint_keeps_the_deferred_prompts(tmp_path):
    run = Run()
    for step in range(1, 5):
        run.step(step, 40)
    deferred = run.rounds.schedule.deferred
    assert deferred
    run.rounds.save(tmp_path / "global_step_4")
    run.step(5, 40)
    resumed = Run()
    resumed.rounds.load(tmp_path / "global_step_4")
    assert resumed.rounds.schedule.deferred == deferred
    assert resumed.rounds.schedule.round_number == 4


def test_a_checkpoint_of_another_trainer_or_other_data_is_refused(tmp_path):
    with pytest.raises(InputError, match="resume_mode=disable"):
        Run().rounds.load(tmp_path)
    Run().rounds.save(tmp_path)
    with pytest.raises(InputError, match=rf"{STATE}: .*\(rows then 60, now 61\)"):
        Run(rows=61).rounds.load(tmp_path)


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="the data set has 12 rows"):
        Run(rows=12)


def test_a_round_in_which_all_fails_ends_the_run():
    run = Run()

    async def broken(issue, before, max_tokens):
        raise OSError("no route")

    run.decode = broken
    with pytest.raises(RunFailed, match="OSError: no route"):
        run.step(1, 40)
