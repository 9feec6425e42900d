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
    [{"a": 1}, [], [1], ["no such tag"], ["L", [[1]]], ["L", {}], ["=", 0], ["d", [[["l", []], 1]]], ["i", "x"],
     ["date", "timedelta", "x", 0], ["D", [], "eval"], ["type", "eval"], ["frac", 1, 0], ["q", [], "x"],
     ["b", "\u0100"]],
)  # fmt: skip
def test_what_no_writer_writes_is_not_read(written):
    with pytest.raises(Unreadable):
        Reader(unknown).read(written)


def test_dates_with_a_zone_keep_it():
    zone = datetime.timezone(datetime.timedelta(hours=-3))
    value = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, zone, fold=1)
    assert (through(value), through(value).fold, through(value).tzinfo) == (value, 1, zone)
