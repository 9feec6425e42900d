"""Metrics of verl, slime and TRL: files that their own writers wrote (files/), and forms that others export."""

import csv
import json
from pathlib import Path

import pytest

from rlplan.frameworks.logs.metric_log import missing_fields, read_metric_log
from rlplan.plans.yaml.errors import InputError

FILES = Path(__file__).parent / "files"


def test_verls_console_log_has_all_phases():
    log = read_metric_log(FILES / "verl_console.log")
    assert (log.framework, log.form, [step.step for step in log.steps]) == ("verl", "console log", [1, 2, 3, 4, 5, 6])
    first = log.steps[0]
    assert first.rollout_s == 3.2360480897374346 and first.total_s == 5.674405704112905
    parts = (0.4396058242610681, 0.315497227080241, 0.0106651509567959, 1.3204773043455225)
    assert first.train_s == pytest.approx(sum(parts)) and first.sync_s == 0.1917955043087719
    assert first.samples == 128 and first.max_tokens == 288.0
    assert missing_fields(log.steps) == ["median_tokens", "long_round", "deferred", "filtered"]


def test_slimes_console_log_puts_rollout_and_trainer_together():
    log = read_metric_log(FILES / "slime_console.log")
    assert log.framework == "slime" and [step.step for step in log.steps] == [0, 1, 2]
    assert [step.rollout_s for step in log.steps] == [3.0, 4.0, 5.0]
    assert {(step.train_s, step.sync_s, step.reward_mean) for step in log.steps} == {(2.0, 0.25, 0.5)}
    assert log.steps[0].mean_tokens == 11.0 and log.steps[0].median_tokens == 10.0


@pytest.mark.parametrize(
    "line",
    [
        "[x] rollout_metrics.py:268 - perf 3: {'perf/rollout_time': 2.0, 'rollout/rlplan/long_round': 1.0, "
        "'rollout/rlplan/deferred_prompts': 5.0}",
        "step:3 - timing_s/gen:2.0 - rlplan/long_round:1.0 - rlplan/deferred_prompts:5",
    ],
)
def test_rounds_of_a_plan_say_their_kind(tmp_path, line):
    (tmp_path / "x.log").write_text(line)
    (step,) = read_metric_log(tmp_path / "x.log").steps
    assert (step.step, step.rollout_s, step.long_round, step.deferred) == (3, 2.0, 1.0, 5.0)


def test_slime_logs_what_its_filter_dropped(tmp_path):
    pairs = "'rollout/dynamic_filter/drop_zero_std_0.0': 3, 'rollout/dynamic_filter/drop_zero_std_1.0': np.int64(2)"
    (tmp_path / "x.log").write_text(
        "perf 0: {'perf/rollout_time': 2.0, " + pairs + "}\nperf 1: {'perf/rollout_time': 1e-05}"
    )
    assert [step.filtered for step in read_metric_log(tmp_path / "x.log").steps] == [5.0, 0.0]


def test_trls_state_has_whole_steps_and_lengths_only():
    log = read_metric_log(FILES / "trl_trainer_state.json")
    assert log.framework == "trl" and len(log.steps) == 3
    assert log.steps[0].total_s == 0.8866198630021245 and log.steps[0].mean_tokens == 6.375
    assert {"rollout_s", "train_s", "sync_s"} <= set(missing_fields(log.steps))


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_history_of_wandb_joins_rows_of_a_step(tmp_path):
    rows = [
        {"_step": 0, "train/global_step": 4, "profiling/Time taken: GRPOTrainer.vLLM.generate": 2.0},
        {
            "_step": 1,
            "train/global_step": 4,
            "train/step_time": 5.0,
            "train/completions/mean_length": 50,
            "train/reward": "NaN",
        },
    ]
    log = read_metric_log(write_csv(tmp_path / "wandb.csv", rows))
    (step,) = log.steps
    assert (log.framework, step.step, step.rollout_s, step.train_s, step.reward_mean) == ("trl", 4, 2.0, 3.0, None)


def test_a_chart_of_wandb_names_runs_in_its_columns(tmp_path):
    row = {
        "Step": 7,
        "fast run - timing_s/gen": 1.5,
        "fast run - timing_s/gen__MIN": 1,
        "fast run - timing_s/gen__MAX": 9,
    }
    (step,) = read_metric_log(write_csv(tmp_path / "chart.csv", [row])).steps
    assert (step.step, step.rollout_s, step.total_s) == (7, 1.5, None)


def test_verls_file_logger_and_tensorboard_say_the_same(tmp_path):
    board = pytest.importorskip("torch.utils.tensorboard")
    rows = [{"timing_s/gen": 1.0 + n, "timing_s/step": 2.0 + n, "response_length/mean": 8.0} for n in range(3)]
    (tmp_path / "log.jsonl").write_text(
        "".join(json.dumps({"step": n, "data": row}) + "\n" for n, row in enumerate(rows))
    )
    writer = board.SummaryWriter(str(tmp_path / "board" / "run"))
    for n, row in enumerate(rows):
        for key, value in row.items():
            writer.add_scalar(key, value, n)
    writer.close()
    assert read_metric_log(tmp_path / "board").steps == read_metric_log(tmp_path / "log.jsonl").steps
    assert [step.rollout_s for step in read_metric_log(tmp_path / "board").steps] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("text", ["", "hello\n", "step:x - a:1\n", "a,b\n1,2\n"])
def test_other_texts_are_no_log(tmp_path, text):
    (tmp_path / "x.log").write_text(text)
    assert read_metric_log(tmp_path / "x.log") is None


def test_a_torn_line_of_json_is_named(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "data": {"timing_s/gen": 1.0}}\n{"step": 2, "da\n')
    with pytest.raises(InputError, match="line 2 is no JSON"):
        read_metric_log(tmp_path / "log.jsonl")


def test_a_number_beyond_floats_is_left_out(tmp_path):
    row = f'{{"step": 1, "timing_s/step": 2.0, "timing_s/gen": 1{400 * "0"}}}\n'
    (tmp_path / "log.jsonl").write_text(row)
    (step,) = read_metric_log(tmp_path / "log.jsonl").steps
    assert (step.total_s, step.rollout_s) == (2.0, None)
