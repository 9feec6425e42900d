"""What tester and response write to each other: values come out as they went in, and nothing else is read."""

import datetime
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.rewards.sandbox import plain_data
from rlplan.executor.rewards.sandbox.plain_data import Reader, Unreadable, Writer


def refuse(value):
    raise AssertionError(f"{value!r} is not written as data")


def unknown(written):
    raise Unreadable(str(written))


def through(value):
    return Reader(unknown).read(json.loads(json.dumps(Writer(refuse).write(value))))


keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
keys |= st.decimals(allow_nan=False) | st.fractions() | st.datetimes() | st.dates() | st.timedeltas()
keys |= st.tuples(keys, st.frozensets(keys))
values = st.recursive(
    keys | st.complex_numbers(allow_nan=False) | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.sets(keys)
        | st.lists(inner).map(deque) | st.dictionaries(keys, inner).map(OrderedDict)
        | st.dictionaries(keys, inner).map(lambda d: defaultdict(list, d))
        | st.dictionaries(keys, st.integers()).map(Counter)
    ),
)  # fmt: skip


def types_of(value):
    """The types of a value and of all in it, in order."""
    if isinstance(value, dict):
        return [type(value), [types_of(each) for pair in value.items() for each in pair]]
    if isinstance(value, (list, tuple, deque)):
        return [type(value), [types_of(each) for each in value]]
    return [type(value)]


@given(values)
def test_plain_data_comes_out_as_it_went_in(value):
    read = through(value)
    assert read == value
    assert types_of(read) == types_of(value)


def test_values_at_the_edge_come_out_as_they_went_in():
    for value in (math.inf, 10**6000, -(10**6000), range(3, 9, 2), ..., int, "\ud800", {1: {}}.keys()):
        assert through(value) == value
    assert math.isnan(through(math.nan))


def test_cycles_and_shared_containers_stay_what_they_are():
    shared = [1]
    value = [shared, {"again": shared}]
    value.append(value)
    read = through(value)
    assert read[0] is read[1]["again"]
    assert read[2] is read


def test_an_instance_of_a_derived_class_is_not_written_as_data():
    class Number(int):
        pass

    written = []
    Writer(lambda value: written.append(value) or ["object"]).write([Number(3), True, Fraction(1), Decimal(1)])
    assert written == [3]


@pytest.mark.parametrize(
    "written",
    [{"a": 1}, [], [1], ["no such tag"], ["l", [[1]]], ["l", {}], ["l"], ["=", 0], ["d", [["l", []], 1]], ["d", [1]],
     ["i", "x"], ["date", ["x", 0]], ["D", ["eval"]], ["type", "eval"], ["frac", [1, 0]], ["q", ["x"]],
     ["b", ["\u0100"]], ["r", [["l", [1]]]]],
)  # fmt: skip
def test_what_no_writer_writes_is_not_read(written):
    with pytest.raises(Unreadable):
        Reader(unknown).read(written)


def test_dates_with_a_zone_keep_it():
    zone = datetime.timezone(datetime.timedelta(hours=-3))
    value = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, zone, fold=1)
    assert (through(value), through(value).fold, through(value).tzinfo) == (value, 1, zone)


@pytest.fixture
def numpy(monkeypatch):
    """numpy, whose arrays are data within the test."""
    module = pytest.importorskip("numpy")
    for name in ("_FORMS", "_BY_TAG"):
        monkeypatch.setattr(plain_data, name, dict(getattr(plain_data, name)))
    plain_data.use_numpy(module)
    return module


def test_arrays_and_numbers_of_numpy_are_data_by_their_bytes(numpy):
    values = [
        numpy.arange(6.0).reshape(2, 3), numpy.zeros((0, 2), "i2"), numpy.array(3), numpy.array(["a", "bc"]),
        numpy.array(["2020-01-01"], "datetime64[D]"), numpy.float64(0.5), numpy.int64(-1), numpy.bool_(True),
    ]  # fmt: skip
    for value in values:
        writer = Writer(lambda value: ["?"])
        written = json.loads(json.dumps(writer.write([value, value])))
        first, second = Reader(lambda written: None).read(written)
        assert type(first) is type(value) and first.dtype == value.dtype and first.shape == value.shape
        assert first.tobytes() == value.tobytes() and (first is second or not value.shape)
    held = plain_data.refill(numpy.zeros(3), numpy.ones(3))
    assert held.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(Unreadable):
        plain_data.refill(numpy.zeros(3), numpy.ones(2))


def test_arrays_that_hold_objects_are_no_data(numpy):
    refused = Writer(lambda value: ["?"])
    for value in (numpy.array([print]), numpy.zeros(1, [("a", float)]), numpy.ma.masked_array([1])):
        assert refused.write(value) == ["?"]
    for text in ("|O8", "<f8'", "[('a','<f8')]"):
        with pytest.raises(Unreadable):
            Reader(lambda written: None).read(["array", text, [1], "\0" * 8])
    with pytest.raises(Unreadable):
        Reader(lambda written: None).read(["array", "<f8", [1 << 40], "\0" * 8])
