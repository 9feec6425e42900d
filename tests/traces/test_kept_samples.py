"""Files of kept responses: written whole, read back, sorted and filtered; torn ones are refused with what to do."""

import gzip

import pytest

from rlplan.plans.yaml.errors import InputError
from rlplan.traces.kept_samples import (
    clipped,
    fits,
    forget_after,
    in_order,
    kept_steps,
    read_samples,
    samples_file,
    spread,
    write_samples,
)
from rlplan.traces.trace_events import RewardPart

from .kept import kept


def test_what_is_written_is_read_and_equal_rows_give_equal_bytes(tmp_path):
    rows = [
        kept(1, 0, response="\x1b[31m[bold]é\n\u202e", reward_parts={"math": RewardPart(1.0, 0.5, "ok")}),
        kept(1, 1, reward=None, advantage=None, fate=None),
    ]
    path = samples_file(tmp_path, 12)
    write_samples(path, rows)
    assert path.name == "step-000012.jsonl.gz" and [*path.parent.iterdir()] == [path], "nothing is left beside it"
    before = path.read_bytes()
    write_samples(path, rows)
    assert path.read_bytes() == before
    assert list(read_samples(path)) == rows and list(read_samples(path, 1)) == rows[:1]
    assert gzip.decompress(before).count(b"\n") == 2


def test_files_of_later_steps_are_forgotten(tmp_path):
    assert kept_steps(tmp_path) == {}
    for number in (1, 2, 10, 1_000_000):
        write_samples(samples_file(tmp_path, number), [kept(number)])
    (tmp_path / "samples" / "step-notes.jsonl.gz").write_text("of somebody else")
    assert list(kept_steps(tmp_path)) == [1, 2, 10, 1_000_000]
    forget_after(tmp_path, 2)
    assert list(kept_steps(tmp_path)) == [1, 2]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-20], "torn after"),
        (lambda data: data[:5], "torn after 0 responses"),
        (lambda data: b"no gzip at all", "torn after 0 responses"),
        (lambda data: data[:60] + bytes([data[60] ^ 255]) + data[61:], "torn after"),
        (lambda data: gzip.compress(b'{"step": 1}\n'), "damaged in line 1"),
        (lambda data: gzip.compress(b"\xff\n"), "damaged in line 1"),
    ],
)
def test_a_torn_file_is_refused_with_what_to_do(tmp_path, damage, said):
    path = samples_file(tmp_path, 3)
    write_samples(path, [kept(3, number, response=f"{number * 7919:x}" * 40) for number in range(50)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as refused:
        list(read_samples(path))
    assert said in str(refused.value) and "delete it" in str(refused.value) and path.name in str(refused.value)


def test_responses_are_sorted_by_length_and_reward_with_unscored_ones_last():
    rows = [kept(1, number, tokens=tokens, reward=reward) for number, (tokens, reward) in enumerate(
        [(5, 0.5), (9, None), (1, -1.0), (9, 0.5)]
    )]  # fmt: skip

    def order(name):
        return [row.sample for row in in_order(iter(rows), name)]

    assert order(None) == [0, 1, 2, 3]
    assert order("shortest") == [2, 0, 1, 3] and order("longest") == [1, 3, 0, 2]
    assert order("best") == [0, 3, 2, 1] and order("worst") == [2, 0, 3, 1]


def test_a_filter_keeps_what_has_all_of_it():
    row = kept(1, kind="long", truncated=True, fate="deferred", response="Wait, STRASSE")
    assert fits(row, None, None, None) and fits(row, "p1", "long", "straße") and fits(row, None, None, "what IS")
    assert fits(row, None, "truncated", None) and fits(row, None, "deferred", None)
    assert not fits(row, "p", None, None) and not fits(row, None, "short", None) and not fits(row, None, None, "hm")
    plain = kept(1)
    assert not any(fits(plain, None, only, None) for only in ("truncated", "deferred", "long"))


def test_a_spread_has_both_ends_and_a_clipped_text_its_own():
    assert spread([3, 4, 5], 3) == [3, 4, 5] and spread(list(range(101)), 3) == [0, 50, 100] and spread([], 3) == []
    text = "a" * 60 + "z" * 60
    short = clipped(text, 30)
    assert short.startswith("a" * 20 + "\n[... 90 characters ...]\n") and short.endswith("z" * 10)
    assert clipped(text, 120) == text
