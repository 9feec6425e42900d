"""How tables that ship come about: from responses, from a published CDF, from two sources of executions."""

import csv
import gzip
import json
import math

import numpy as np
import pytest

from rlplan.tools.build_tables import length_tables, main, reward_tables


def packed(path, heads, rows):
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([heads, *rows])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder like that of the public measurements, with made-up figures."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    heads = ["source", "step", "prompt_id", "sample_id", "response_tokens", "reward"]

    def responses(source, middle, prompts=50):
        own = rng.normal(0, 0.9, prompts)
        return [
            [source, 0, f"p{p}", s, round(math.exp(math.log(middle) + own[p] + rng.normal(0, 0.3))), ""]
            for p in range(prompts)
            for s in range(8)
        ]

    thinking = responses("QwQ-32b", 9000) + responses("qwen3-30b", 2000) + responses("qwen3-235b", 3000)
    packed(folder / "lengths" / "reasoning_3x.csv.gz", heads, thinking)
    packed(folder / "lengths" / "aime_llama3b_rl_50x.csv.gz", heads, responses("aime2024", 500))
    packed(folder / "lengths" / "math100_qwen25math_8x.csv.gz", heads, responses("qwen2.5-math", 300))
    packed(folder / "lengths" / "reasoning_gym_3x.csv.gz", heads, responses("google_gemma-3-27b-it", 100))
    requests: list[list[object]] = [["output_tokens", 100 * k, 1.0] for k in range(1, 101)]
    packed(folder / "lengths" / "deepseek_r1_production.csv.gz", ["field", "value", "weight_requests"], requests)
    packed(folder / "reward" / "kodcode_exec_time.csv.gz", ["prompt_hash", "sample_id", "exec_s"],
           [["x", 0, 0.03]] * 99 + [["y", 0, 9.0]])  # fmt: skip
    cdf = [[float(10 * k), float(k)] for k in range(1, 96)]
    executions = [[0.1 + 0.01 * k, float(k)] for k in range(1, 96)] + [[30.0, 100.0]]
    figures = {f"fig2a_{kind}": cdf for kind in ("math", "code", "judge")} | {"fig7a_exec_cdf": executions}
    (folder / "papers").mkdir()
    (folder / "papers" / "rollpacker_figures.json").write_text(json.dumps(figures))
    return folder


@pytest.fixture(scope="module")
def tables(data):
    return {table.name: table for table in length_tables(data)}


def test_a_published_cdf_keeps_its_points_and_the_share_at_the_cap(tables):
    table = tables["math-16k"]
    assert [table.quantile(share) for share in (0.1, 0.5, 0.9)] == [100, 500, 900]
    assert table.cap_tokens == 16384 and table.at_cap == pytest.approx(0.0107)


def test_responses_beyond_the_cap_were_cut_by_it(tables):
    table = tables["reasoning-32k"]
    assert table.quantile(0.5) == pytest.approx(9000, rel=0.5) and table.cap_tokens == 32000
    assert 0.01 < table.at_cap < 0.3, "some of these are longer"
    assert table.icc == pytest.approx(0.9, abs=0.06) and "400 responses to 50 prompts" in table.source
    assert tables["reasoning-16k"].quantile(0.5) < table.quantile(0.5), "of two other models"
    assert tables["chat-32k"].quantile(0.5) == 5000, "weighted requests"


def test_right_executions_take_the_sandbox_and_wrong_ones_may_hang(data):
    code = next(table for table in reward_tables(data) if table.kind == "code")
    assert code.right_s is not None and code.wrong_s is not None and code.correct is not None
    # Half of the executions take 0.575 s, the reference solutions 0.03: the rest is the sandbox.
    assert code.right_s[0] == pytest.approx(0.575, abs=0.01) and code.right_s[-1] > 2
    assert code.wrong_s[-1] < 1.1 and code.hanging == 0.1
    assert code.correct * (1 - (code.unsolved or 0)) == pytest.approx(0.5)


def test_a_folder_without_the_measurements_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main(["--data", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("tables: ") and "no such file" in said and "\n" not in said
