"""The benchmark of the decode law: what is left out, what is printed, and how it says that a file is missing."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.decode_fit import AXES, axis_values, main, report
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.imports.served_file import COLUMNS, Group
from rlplan.profiles.laws.decode_law import FACTORS, DecodeLaw
from rlplan.profiles.laws.served_decode import Served, seconds_per_token
from rlplan.profiles.laws.served_fit import sheet_of

GROUP = Group("h100_sxm", "Qwen/Qwen3-32B", "bf16")


def points(tps: tuple[int, ...] = (2, 4)) -> Served:
    cells = [(t, 1, 1, b, i, o, 1) for t in tps for b in (4, 16, 64) for i, o in ((1024, 1024), (1024, 4096))]
    asked = Served(*np.array(cells, float).T)
    law = DecodeLaw(sheet_of(GROUP), np.array([factor.log_mean for factor in FACTORS]))
    columns = [getattr(asked, name) for name in ("tp", "ep", "dp", "batch", "isl", "osl")]
    return Served(*columns, seconds_per_token(law, asked))


def test_points_of_the_law_are_predicted_when_left_out() -> None:
    found = report({GROUP: points()})
    assert set(found["mape"]) == set(AXES) and max(found["mape"].values()) < 0.03
    assert found["groups"] == 1 and found["by_model"][str(GROUP)]["points"] == 12
    assert found["worst"]["tp"]["group"] == str(GROUP)
    assert found["calibration"] > 0.9


def test_an_axis_with_one_value_and_a_group_with_few_points_are_left_alone() -> None:
    found = report({GROUP: points((1, 2)).take(np.arange(12) >= 0), Group("h200", "m-7b", "fp8"): points((2,))})
    assert found["groups"] == 1
    one_tp = points((2, 2))
    assert "tp" not in report({GROUP: one_tp})["mape"]
    with pytest.raises(InputError, match="has 12 points"):
        report({GROUP: points((2,))})


def test_lengths_are_left_out_as_pairs() -> None:
    assert len(np.unique(axis_values(points(), "context"))) == 2
    assert set(axis_values(points(), "batch")) == {4, 16, 64}


def test_it_prints_one_json_line_or_one_line_of_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    p = points()
    rows = [
        f"{GROUP.system},{GROUP.model},bf16,{p.isl[i]},{p.osl[i]},{p.tp[i]},1,1,{p.batch[i]},{1e3 * p.seconds[i]},False"
        for i in range(len(p))
    ]
    data = tmp_path / "points.csv"
    data.write_text("\n".join([",".join(COLUMNS), *rows]))
    assert main(["--data", str(data), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and set(json.loads(out)["mape"]) == set(AXES)
    assert main(["--data", str(data)]) == 0
    assert "median of 1" in capsys.readouterr().out
    assert main(["--data", str(tmp_path / "none.csv"), "--json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
