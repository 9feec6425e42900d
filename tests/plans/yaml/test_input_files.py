"""Inputs are regular files of a limited size: anything else is refused with one line, without waiting."""

import json
import os
from pathlib import Path

import pytest

from rlplan.plans.facts.model_shape import shape_of
from rlplan.plans.files.prompt_rows import read_prompts
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.input_files import DATA_BYTES, DOCUMENT_BYTES, chunks, must_be_readable, read_bytes, read_text
from rlplan.plans.yaml.yaml_io import sha256_file
from rlplan.profiles.length_trace import read_lengths
from rlplan.tools.published_lengths import read_length_table
from rlplan.tools.served_fit import read_served
from rlplan.tools.train_file import read_runs
from rlplan.tools.transfers_and_prices import read_syncs

pytestmark = pytest.mark.timeout(30)  # what is tested here would wait for ever

READERS = (
    read_bytes, read_text, sha256_file, must_be_readable, read_prompts, read_lengths, read_length_table, read_syncs,
    read_runs, read_served,
)  # fmt: skip


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_pipe_or_an_endless_device_is_refused_by_every_reader(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(InputError, match=f"{path}: is a pipe or a device; a file is needed"):
            read(path)


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path):
    for size, read in ((DATA_BYTES + 1, sha256_file), (DOCUMENT_BYTES + 1, read_text)):
        with (tmp_path / "large").open("wb") as file:
            file.truncate(size)  # it takes no room on the disk
        with pytest.raises(InputError, match=r"large: has [\d,]+ MiB, and at most [\d,]+ MiB are read; check that"):
            read(tmp_path / "large")
    (tmp_path / "just").write_bytes(b"0123456789")
    assert b"".join(chunks(tmp_path / "just", most_bytes=10)) == b"0123456789"


def test_a_file_longer_than_it_says_is_refused():
    assert read_text("/proc/self/status").startswith("Name:"), "it says that it has none"
    with pytest.raises(InputError, match="at most 0 MiB are read"):
        list(chunks("/proc/self/status", most_bytes=10))


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "no such file"), (".", "is a folder; a file is needed"), ("a\0b", "is no path: it holds a null"),
     ("n" * 300, "cannot be read: File name too long"), ("loop", "cannot be read: Too many levels"),
     ("text", r"text:2: is not UTF-8 text; save it as UTF-8"),
     *((name, f"{name}:1: is UTF-16 and not UTF-8 text; save") for name in ("utf-16", "utf-16-le", "utf-16-be"))],
)  # fmt: skip
def test_what_is_no_file_of_text_is_said_in_words(name, message, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "text").write_bytes(b"one\ntwo \xff\n")
    for coding in ("utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / coding).write_bytes("name: one\n".encode(coding))
    with pytest.raises(InputError, match=message):
        read_text(tmp_path / name if "\0" not in name else name)


@pytest.mark.parametrize(
    ("key", "value", "most"),
    [
        ("tokens", 99_999_999_999, "10000000"),
        ("prompt_tokens", 10_000_001, "10000000"),
        ("epoch", 10**30, "1000000000"),
    ],
)
def test_a_length_that_nothing_has_is_refused_at_its_line(key, value, most, tmp_path):
    row = {"prompt": "a", "epoch": 0, "sample": 0, "tokens": 5, "truncated": False, "reward": 1.0, "prompt_tokens": 3}
    (tmp_path / "l.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in (row, {**row, "sample": 1, key: value})))
    with pytest.raises(InputError, match=f"l.jsonl:2: .*{key} is {value}, and at most {most} is believed"):
        read_lengths(tmp_path / "l.jsonl")


def test_a_models_config_that_is_a_pipe_or_no_json_is_refused(tmp_path):
    config = tmp_path / "config.json"
    os.mkfifo(config)
    with pytest.raises(InputError, match="is a pipe or a device"):
        shape_of(tmp_path)
    config.unlink()
    for text, words in (
        ("[" * 200_000, "json:1: JSON is nested too deeply at column 101"),
        ('{\n"a": 8,\n', r"json:\d: not valid JSON"),
        ("[]", "one JSON object"),
    ):
        config.write_text(text)
        with pytest.raises(InputError, match=words):
            shape_of(tmp_path)
    config.unlink()
    with pytest.raises(InputError, match=r"no config\.json"):
        shape_of(tmp_path)


def test_the_limits_leave_room_for_what_people_have():
    example = Path(__file__).resolve().parents[3] / "plans" / "examples" / "groups.yaml"
    jobs = example.read_text().count("slowdown:")
    assert 2 * 2000 * example.stat().st_size / jobs < DOCUMENT_BYTES, "a plan of 2,000 jobs"
