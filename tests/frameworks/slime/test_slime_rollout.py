"""A plan's rounds inside slime and vime: conservation, unbiased lengths, resume, and settings that do not go."""

import collections
import statistics

import pytest

from rlplan.plans.yaml.errors import InputError
from tests.frameworks.slime import slime_stand_in as stand_in
from tests.plans.conftest import PLAN

ROWS, CAP = 40, 64
PLAN_4x2 = (
    PLAN.replace("{prompts_per_step: 16, samples_per_prompt: 8}", "{prompts_per_step: 4, samples_per_prompt: 2}")
    .replace("{prompts: 20, samples: 8}", "{prompts: 6, samples: 2}")
    .replace("{prompts: 16, samples: 8, copies: 3}", "{prompts: 4, samples: 2, copies: 2}")
    .replace("cutoff_tokens: 288", "cutoff_tokens: 20")
    .replace("{samples: 128.0, tokens: 23040}", "{samples: 8.0, tokens: 96}")
)
for name in ("CLUSTER_SHA", "JOB_SHA", "PROFILE_SHA", "LENGTHS_SHA", "DECISIONS"):
    PLAN_4x2 = PLAN_4x2.replace(name, "a" * 64)


@pytest.fixture(params=["slime", "vime"])
def framework(request):
    return request.param


@pytest.fixture
def start(tmp_path, monkeypatch, framework):
    """start(seed, **arguments) -> the engine, the plug-in's module, slime's arguments, a data source."""
    (tmp_path / "plan.yaml").write_text(PLAN_4x2)

    def start(seed=1, rows=ROWS, aborts=0.0, **others):
        engine = stand_in.Engine(seed, CAP, aborts)
        plugin = stand_in.load(framework, engine, monkeypatch)
        args = stand_in.arguments(tmp_path, rows, **others)
        return engine, plugin, args, plugin.PlannedDataSource(args)

    return start


def trained_rows(output):
    """The row of each group that has a loss."""
    groups = [group for group in output.samples if not group[0].remove_sample]
    assert all(len(group) == 2 and len({s.group_index for s in group}) == 1 for group in groups)
    return [group[0].metadata["rlplan"]["row"] for group in groups]


def test_200_rounds_with_kills_lose_and_repeat_no_row(start):
    engine, plugin, args, source = start(seed=3, aborts=0.02)
    args.load, trained, lengths, kinds = args.save, collections.Counter(), [], set()
    saved, rollout = (collections.Counter(), []), 0
    while rollout < 200:
        if rollout % 37 == 36 and saved:  # killed: what was trained since the checkpoint is trained anew
            source, rollout = plugin.PlannedDataSource(args), rollout - rollout % 5
            source.load(rollout - 1)
            (trained, lengths), saved = (saved[0].copy(), list(saved[1])), None
        output = plugin.generate_rollout(args, rollout, source)
        assert len(output.samples) == 4 and engine.open == 0
        trained.update(trained_rows(output))
        kinds.add(output.metrics["rollout/rlplan/long_round"])
        lengths += [sample.response_length for group in output.samples for sample in group if not sample.remove_sample]
        rollout += 1
        if rollout % 5 == 0:
            source.save(rollout - 1)
            saved = trained.copy(), list(lengths)
    source.schedule.check_invariants()
    assert kinds == {0.0, 1.0} and engine.swept > 0
    state = source.schedule.state()
    closed = state["next_epoch"] - len(state["epochs"])
    assert closed > 10
    for row in range(ROWS):  # once in each epoch that is over, and in those that are open, where it is settled
        assert trained[row] == closed + sum(f"{row:09d}" in epoch["settled"] for epoch in state["epochs"])
    plain = stand_in.Engine(11, CAP)
    drawn = [
        min(CAP, 1 + int(plain.random.expovariate(1 / plain.mean(row)))) for row in range(ROWS) for _ in range(250)
    ]
    assert statistics.mean(lengths) / statistics.mean(drawn) == pytest.approx(1.0, abs=0.06)


def test_a_long_sample_goes_on_with_its_own_tokens(start):
    engine, plugin, args, source = start()
    long = []
    for rollout in range(30):
        for group in plugin.generate_rollout(args, rollout, source).samples:
            for sample in group:
                row, *response = sample.tokens
                assert len(set(response)) == 1 and engine.prompts[response[0]] == row
                assert sample.response_length == len(response) == engine.lengths[response[0]]
                long += [sample] if sample.response_length > 20 else []
    assert long and all(sample.metadata["rlplan"]["round"] == "long" for sample in long if not sample.remove_sample)


def test_resume_keeps_deferred_rows_and_their_order(start):
    _, plugin, args, source = start()
    rollout = 0
    while len(source.schedule.deferred) < 2:
        plugin.generate_rollout(args, rollout, source)
        rollout += 1
    waiting, state = source.schedule.deferred, source.schedule.state()
    plugin.generate_rollout(args, rollout, source)  # ran ahead; the checkpoint is of the rollout before
    source.save(rollout - 1)
    args.load = args.save
    resumed = plugin.PlannedDataSource(args)
    resumed.load(rollout - 1)
    assert resumed.schedule.deferred == waiting and resumed.schedule.state() == state
    assert resumed.sample_index == source.sample_index


def test_the_last_rollouts_train_what_is_deferred(start):
    _, plugin, args, source = start(num_rollout=23)
    kinds = [plugin.generate_rollout(args, n, source).metrics["rollout/rlplan/long_round"] for n in range(23)]
    assert kinds[-1] == 1.0 and 0.0 in kinds and source.schedule.deferred == ()


def test_a_checkpoint_of_other_data_is_refused(start, tmp_path):
    _, plugin, args, source = start()
    source.save(0)
    other = stand_in.arguments(tmp_path, ROWS + 1, load=args.save)
    with pytest.raises(InputError, match="another data set"):
        plugin.PlannedDataSource(other).load(0)


def test_a_round_of_few_prompts_is_filled_without_loss(start):
    _, plugin, args, source = start(rows=3, rollout_batch_size=4)
    output = plugin.generate_rollout(args, 0, source)
    trained, filling = set(trained_rows(output)), [g for g in output.samples if g[0].remove_sample]
    assert len(output.samples) == 4 and trained <= {0, 1, 2} and len(trained) + len(filling) == 4
    assert all(sum(s.loss_mask) == 0 and s.reward is not None for g in filling for s in g)
    numbers = [sample.index for group in output.samples for sample in group]
    assert len(set(numbers)) == len(numbers)


def test_groups_of_equal_rewards_are_filtered(start):
    path = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    _, plugin, args, source = start(dynamic_sampling_filter_path=path)
    outputs = [plugin.generate_rollout(args, rollout, source) for rollout in range(20)]
    assert all(len({s.reward for s in g}) == 2 for o in outputs for g in o.samples if not g[0].remove_sample)
    assert sum(output.metrics["rollout/rlplan/filtered_prompts"] for output in outputs) > 0


def test_evaluation_is_the_frameworks_own(start, framework, monkeypatch):
    _, plugin, args, source = start()
    own = plugin._host(f"rollout.{stand_in.ENGINES[framework]}_rollout")
    monkeypatch.setattr(own, "generate_rollout", lambda *given, evaluation: (given, evaluation))
    assert plugin.generate_rollout(args, 7, source, evaluation=True) == ((args, 7, source), True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"partial_rollout": True}, "--partial-rollout"),
        ({"rollout_batch_size": 8}, "the plan is for 4 prompts a step"),
        ({"rollout_max_response_len": 16}, "cutoff is 20"),
        ({"rlplan_plan": None}, "no plan: write `rlplan_plan: PLAN`"),
        ({"dynamic_sampling_filter_path": "mine.filter"}, "know check_reward_nonzero_std"),
        ({"custom_generate_function_path": "mine.generate"}, "continues a sample's tokens"),
    ],
)
def test_settings_that_do_not_go_with_a_plan(start, setting, message):
    with pytest.raises(InputError, match=message):
        start(**setting)


def test_the_frameworks_own_data_source_is_refused(start):
    _, plugin, args, source = start()
    with pytest.raises(InputError, match="--data-source-path"):
        plugin.generate_rollout(args, 0, object())
    with pytest.raises(RuntimeError, match="--rollout-function-path"):
        source.get_samples(1)


def test_failures_of_all_rewards_end_the_run_with_their_reason(start, monkeypatch, framework):
    _, plugin, args, source = start()

    async def broken(args, sample):
        raise ConnectionError("no judge")

    monkeypatch.setattr(plugin._host(f"rollout.{stand_in.ENGINES[framework]}_rollout"), "async_rm", broken)
    with pytest.raises(RuntimeError, match="no judge"):
        for rollout in range(12):
            plugin.generate_rollout(args, rollout, source)


@pytest.mark.parametrize("framework", ["vime"], indirect=True)
def test_token_mean_divides_by_the_plans_tokens(start, monkeypatch):
    torch = pytest.importorskip("torch")
    _, plugin, args, _ = start()
    monkeypatch.setenv("RLPLAN_PLAN", args.rlplan_plan)
    masks = [torch.ones(2), torch.tensor([1.0, 0.0, 1.0])]
    reduce = plugin.planned_token_mean([4, 5], [2, 3], masks, False)
    assert reduce(torch.tensor([1.0, 2.0, 3.0, 9.0, 5.0])).item() == pytest.approx(11 / (96 / 8))
    with pytest.raises(InputError, match="--calculate-per-token-loss"):
        plugin.planned_token_mean([4], [2], masks[:1], True)
