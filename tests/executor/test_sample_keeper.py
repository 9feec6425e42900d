"""Which responses of a step are kept, and that a run that goes back keeps none twice."""

import errno

from rlplan.executor.loop import step
from rlplan.executor.records.sample_keeper import SampleKeeper, chosen
from rlplan.executor.rollout.prompts import PromptText
from rlplan.executor.rollout.round_samples import RolloutSample
from rlplan.executor.trainer.train_samples import group_advantages
from rlplan.rounds.machines.outcome import Fate
from rlplan.traces.kept_samples import kept_steps, read_samples, samples_file
from rlplan.traces.run_log import read_run

from .run_stage import PROMPTS, in_a_run


def sample(prompt, draw, number, tokens, reward, fate=Fate.TRAINED):
    made = RolloutSample(prompt, number, [1], [7] * tokens, reward=reward, draw=draw, finished_s=1.0)
    return made, fate


STEP = [sample(f"q{draw}", draw, number, 10 + draw, 0.5) for draw in range(8) for number in range(3)]
STEP[4][0].reward, STEP[10][0].reward, STEP[17][0].reward = 0.9, 0.1, None


def keys(kept, why="drawn"):
    return [each[0].key for each, reason in kept if reason == why]


def test_whole_prompts_are_kept_by_lot_and_the_extremes_beside_them():
    kept = chosen(STEP, 7, 1)
    drawn = keys(kept)
    assert len(drawn) == 6 and len({key.draw for key in drawn}) == 2
    assert {key.draw for key in keys(chosen(STEP, 1, 1))} == {drawn[0].draw}, "one whole prompt at least"
    assert chosen(list(reversed(STEP)), 7, 1)[0][0][0].prompt_id == kept[0][0][0].prompt_id
    lots = {tuple(dict.fromkeys(key.draw for key in keys(chosen(STEP, 7, seed)))) for seed in range(20)}
    assert len(lots) > 10, "the seed decides"
    assert keys(kept, "longest") == [STEP[21][0].key], "the first of equals"
    assert (keys(kept, "best"), keys(kept, "worst")) == ([STEP[4][0].key], [STEP[10][0].key])
    everything = chosen(STEP, None, 1)
    assert sorted(keys(everything)) == [each[0].key for each in STEP] and len(everything) == len(STEP)
    assert chosen([], 7, 1) == []


def test_a_prompt_has_its_lot_in_every_step():
    (again,) = {key.draw for key in keys(chosen(STEP, 3, 1))}
    later = [sample(f"q{7 - draw}", draw, number, 5, 0.5) for draw in range(8) for number in range(3)]
    assert {each[0].prompt_id for each, why in chosen(later, 3, 1) if why == "drawn"} == {f"q{again}"}
    copies = [sample("q", 0, 0, 5, 0.5, Fate.DISCARDED), sample("q", 1, 0, 5, 0.5)]
    assert keys(chosen(copies, None, 1)) == [copies[1][0].key, copies[0][0].key]


def keeper(folder, most=4):
    prompts = {name: PromptText(name, f"ask {name}", (1, 2), "") for name in PROMPTS}
    return SampleKeeper(folder, most, 1, "grpo", prompts, lambda tokens: " ".join(map(str, tokens)))


def test_rows_are_those_of_the_trace_with_the_losss_advantages(tmp_path):
    async def body(run, trainer):
        await step(run)

    in_a_run(tmp_path, body, keeper=keeper(tmp_path))
    assert list(kept_steps(tmp_path)) == [1, 2]
    log = read_run(tmp_path / "trace.jsonl")
    for number, path in kept_steps(tmp_path).items():
        rows = list(read_samples(path))
        drawn = [row for row in rows if row.kept == "drawn"]
        assert [row.sample for row in drawn] == [0, 1, 2], "one prompt of three samples; two have no room"
        assert [row.advantage for row in drawn] == group_advantages("grpo", [1.0, 0.0, 0.0])
        traced = {(each.prompt, each.draw, each.sample): each for each in log.samples[number]}
        for row in rows:
            there = traced[row.prompt, row.draw, row.sample]
            assert (row.tokens, row.reward, row.fate) == (there.tokens, there.reward, there.fate)
            assert row.response == f"{number - 1} {row.draw} {row.sample}" and row.prompt_text == f"ask {row.prompt}"
            assert (row.step, row.kind, row.version) == (number, "short", f"toy:{number - 1}")


def test_steps_that_a_run_goes_back_over_are_kept_once(tmp_path):
    async def body(run, trainer):
        await run.checkpoint()
        await step(run)
        await step(run)
        trainer.dies_in_update = True
        assert await step(run) is None and run.step_number == 1
        assert list(kept_steps(tmp_path)) == [1]
        await step(run)
        assert {row.step for row in read_samples(samples_file(tmp_path, 1))} == {1}

    in_a_run(tmp_path, body, keeper=keeper(tmp_path))
    assert list(kept_steps(tmp_path)) == [1, 2]
    whole = {number: path.read_bytes() for number, path in kept_steps(tmp_path).items()}

    async def nothing(run, trainer):
        assert list(kept_steps(tmp_path)) == [1], "the checkpoint is of step 1"
        await step(run)

    in_a_run(tmp_path, nothing, resume=True, steps=0, keeper=keeper(tmp_path))
    assert {number: path.read_bytes() for number, path in kept_steps(tmp_path).items()} == whole


def test_a_run_that_keeps_nothing_writes_no_file(tmp_path):
    async def body(run, trainer): ...

    in_a_run(tmp_path, body, keeper=keeper(tmp_path, most=0))
    assert not (tmp_path / "samples").exists()


def test_a_disk_that_takes_no_texts_ends_no_run(tmp_path, monkeypatch):
    def full(path, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rlplan.executor.records.sample_keeper.write_samples", full)

    async def body(run, trainer):
        assert run.step_number == 3
        told = [note for note in run.checkpoints.notes if "kept" in note]
        assert told == ["responses cannot be kept (No space left on device); training goes on"]

    in_a_run(tmp_path, body, steps=3, keeper=keeper(tmp_path))
