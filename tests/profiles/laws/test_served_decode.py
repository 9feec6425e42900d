"""Serving points: the newcomers' prefill, a full KV cache, odd layouts, factors carried over, and wrong files."""

import dataclasses

import numpy as np
import pytest

from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.laws.decode_law import FACTORS, DecodeLaw
from rlplan.tools.carried import GENERATION, LEAST_ERROR, carried
from rlplan.tools.served_fit import (
    COLUMNS,
    Group,
    Served,
    fit_served,
    read_served,
    running,
    seconds_per_token,
    sheet_of,
)

GROUP = Group("h100_sxm", "Qwen/Qwen3-32B", "bf16")
OTHER = Group("h200_sxm", "meta-llama/Llama-3.1-70B", "bf16")
BLACKWELL = Group("b200_sxm", "Qwen/Qwen3-32B", "bf16")


def served(**columns):
    length = max(len(v) for v in columns.values())
    usual = {
        "tp": 4.0,
        "ep": 1.0,
        "dp": 1.0,
        "batch": 16.0,
        "isl": 1024.0,
        "osl": 1024.0,
        "seconds": 0.01,
        "ahead": 1.0,
    }
    return Served(**{name: np.array(columns.get(name, [value] * length), float) for name, value in usual.items()})


def truth(group=GROUP):
    return DecodeLaw(sheet_of(group), np.array([factor.log_mean + 0.5 * factor.log_sd for factor in FACTORS]))


def grid(group=GROUP, slower=1.0):
    """Twenty-seven points that follow the law, each so many times as slow."""
    cells = [(t, b, i, o) for t in (2, 4, 8) for b in (4, 16, 64) for i, o in ((1024, 1024), (4096, 512), (512, 4096))]
    points = served(**dict(zip(("tp", "batch", "isl", "osl"), np.array(cells, float).T, strict=True)))
    return dataclasses.replace(points, seconds=slower * seconds_per_token(truth(group), points))


def off(predicted, points):
    """Mean relative error."""
    return np.abs(predicted / points.seconds - 1).mean()


def test_newcomers_cost_in_proportion_to_prompts_over_outputs():
    short, long = seconds_per_token(truth(), served(isl=[512, 4096], osl=[4096, 512]))
    alone = truth().step_s(4.0, 16.0, 16 * np.array([512 + 2048, 4096 + 256]))
    assert short == pytest.approx(float(alone[0]), rel=0.1)
    assert long > 1.3 * float(alone[1])


def test_engines_that_schedule_ahead_hide_the_shorter_of_host_and_device():
    ahead, after = seconds_per_token(truth(), served(batch=[512.0] * 2, isl=[128.0] * 2, ahead=[1.0, 0.0]))
    host = float(truth().host_s(512.0))
    assert max(host, after - host) <= ahead < 1.1 * max(host, after - host) and after > 1.4 * ahead


def test_versions_from_0_14_on_schedule_ahead(tmp_path):
    header = ",".join([*COLUMNS, "versions"])
    rows = [
        f"h100,m,bf16,1024,1024,1,1,1,8,10,False,{v}" for v in ("0.12.0", "0.14.1", "0.17.0|0.19.0", "", "nightly-1")
    ]
    (tmp_path / "s.csv").write_text("\n".join([header, *rows]))
    (points,) = read_served(tmp_path / "s.csv").values()
    assert points.ahead.tolist() == [0, 1, 1, 0, 1]


def test_no_more_run_than_kv_holds():
    few, _, many = running(truth(), served(tp=[2.0, 2.0, 2.0], batch=[8, 64, 4096], isl=[8192.0] * 3))
    assert few == pytest.approx(8, rel=0.01) and many < 100
    seconds = seconds_per_token(truth(), served(tp=[2.0, 2.0], batch=[2048, 4096], isl=[8192.0] * 2))
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-3)


def test_ranks_are_read_from_what_files_call_tp():
    # attention groups of one rank; all ranks; a product of TP and EP beyond a node
    points = served(tp=[1.0, 4.0, 64.0, 4.0, 1.0], dp=[8.0, 4.0, 1.0, 1.0, 64.0], ep=[8.0, 16.0, 8.0, 2.0, 8.0])
    assert points.ranks.tolist() == [8, 4, 8, 4, 8]
    assert points.groups.tolist() == [8, 4, 1, 1, 8]


def test_a_law_is_found_again_also_where_it_was_not_measured():
    points = grid()
    inside = points.tp < 8
    fit, outside = fit_served(GROUP, points.take(inside)), points.take(~inside)
    assert off(fit.predict(outside), outside) < 0.05
    sds = fit.relative_sd(points)
    assert sds[~inside].mean() > sds[inside].mean()


@pytest.mark.parametrize("group", [Group("tpu_v9", "somebody/novel", ""), Group("h100_sxm", "x/Novel-70B", "fp8")])
def test_what_is_in_no_table_is_fitted_too(group):
    points = grid()
    assert off(fit_served(group, points).predict(points), points) < 0.1


def test_neighbours_correct_what_the_law_misses_and_nothing_far_away():
    points = grid()
    habit = np.where(points.batch == 16, 1.1, 1.0)  # a kernel that this batch does not like
    measured = dataclasses.replace(points, seconds=points.seconds * habit)
    left_out = (measured.batch == 16) & (measured.tp == 4)
    fit, asked = fit_served(GROUP, measured.take(~left_out)), measured.take(left_out)
    assert off(fit.predict(asked), asked) < 0.6 * off(seconds_per_token(fit.law, asked), asked)
    far = served(batch=[16.0], isl=[1024.0 * 256], osl=[1024.0 * 256])
    assert fit.predict(far) == pytest.approx(seconds_per_token(fit.law, far), rel=1e-4)


def test_a_generation_without_measurements_takes_the_others_factors():
    found = carried({GROUP: grid(), OTHER: grid(OTHER), BLACKWELL: grid(BLACKWELL, 2.0)})
    ampere, hopper = found["Ampere", False], found["Hopper", False]
    assert GENERATION["A100"] == "Ampere" and set(ampere.on) == {"Hopper", "Blackwell"} and ampere.groups == 3
    assert hopper.on == ("Hopper",) and hopper.groups == 2 and hopper.error == LEAST_ERROR
    # Blackwell predicted from Hopper is about half of what it is, Hopper predicted from Blackwell nearly twice.
    assert ampere.error > 0.3 > hopper.error
    assert not np.allclose(ampere.logs, hopper.logs)
    assert not [kind for kind in found if kind[1]], "no model with experts was measured"


def test_one_measured_generation_is_all_that_another_can_take():
    found = carried({GROUP: grid(), OTHER: grid(OTHER)})
    assert found["Ampere", False].on == ("Hopper",) == found["Blackwell", False].on
    assert found["Ampere", False].logs == pytest.approx(found["Hopper", False].logs)
    assert found["Ampere", False].error == pytest.approx(2 * LEAST_ERROR)


HEADER = ",".join(COLUMNS)


def write(path, rows, header=HEADER):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_flagged_rows_are_left_out_and_empty_layouts_mean_one(tmp_path):
    rows = ["h100,Qwen3-32B,,1024,512,2.0,0.0,,16.0,20.5,False", "h100,Qwen3-32B,,1024,512,2.0,1,,32.0,10,True"]
    points = read_served(write(tmp_path / "a.csv", rows))[Group("h100", "Qwen3-32B", "")]
    assert len(points) == 1
    assert (points.ep[0], points.dp[0], points.seconds[0]) == (1, 1, 0.0205)


@pytest.mark.parametrize(
    ("rows", "header", "says"),
    [
        ([], HEADER, "no rows"),
        (["1"], "batch_size", "no column system"),
        (["h100,m,,1024,x,2,1,1,16,20,False"], HEADER, ":2: osl is 'x'"),
        (["h100,m,,1024,512,2,1,1,16,-1,False"], HEADER, ":2: tpot_ms is -1"),
        (None, "", "no such file"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_where(tmp_path, rows, header, says):
    if rows is not None:
        write(tmp_path / "a.csv", rows, header)
    with pytest.raises(InputError, match=says):
        read_served(tmp_path / "a.csv")
