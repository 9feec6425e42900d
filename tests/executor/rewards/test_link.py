"""The two ends of a sandbox's link, in this process: what is asked once, lent, dropped, and taken for no message."""

import builtins
import gc
import json
import os
import random
import socket
import threading
from types import SimpleNamespace

import pytest

from rlplan.executor.rewards.sandbox.link import LENGTH, MOST_BORROWED, MOST_BYTES, LinkLost, ProcessLink


class Thing(SimpleNamespace):
    """An object of the response's."""

    def __call__(self, function):
        return function()

    def __getattr__(self, name):
        if name == "calls":
            return self.function()
        raise AttributeError(name)


@pytest.fixture
def ends():
    """The tester's end, the response's, which serves in a thread and knows a `thing`, and what it was asked."""
    ours, theirs = socket.socketpair()
    tester, response = ProcessLink(ours, is_tester=True), ProcessLink(theirs, is_tester=False)
    thing, asked = Thing(number=1, rows=[[1], [2]]), []

    def counted(name, act):
        return lambda *values: (asked.append(name), act(*values))[1]

    for name, act in {**response.operations, "thing": lambda: thing}.items():
        response.operations[name] = counted(name, act)

    def serve():
        with pytest.raises(LinkLost):
            response.serve()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield SimpleNamespace(tester=tester, response=response, thing=thing, asked=asked, wire=theirs)
    ours.close()
    thread.join(10)
    theirs.close()


def test_what_only_looks_is_asked_once_until_something_may_have_changed(ends):
    remote, thing = ends.tester.ask("thing"), ends.thing
    assert [remote.number, remote.number] == [1, 1] and ends.asked == ["thing", "getattr"]
    thing.number = 2
    assert remote.number == 1
    remote.number = 3
    assert (remote.number, thing.number) == (3, 3)
    rows = remote.rows
    assert remote.number == 3 and rows == [[1], [2]]
    before = len(ends.asked)
    rows[0].append(7)  # a look tells the response what the test did to its container
    assert remote.number == 3 and len(ends.asked) == before + 1 and thing.rows == [[1, 7], [2]]
    assert remote.rows is rows

    def again():
        thing.number += 1
        return remote.number  # asked from within a look: what that gives may be old by now

    remote.function = again
    assert [remote.calls, remote.calls] == [4, 5]


def test_containers_that_were_read_last_are_lent(ends):
    remote = ends.tester.ask("thing")
    for number in range(MOST_BORROWED + 1):
        setattr(ends.thing, f"list{number}", [number])
    lists = [getattr(remote, f"list{number}") for number in range(MOST_BORROWED + 1)]
    for each in lists:
        each.append("changed")
    assert remote.number == 1
    assert [len(getattr(ends.thing, f"list{n}")) for n in range(MOST_BORROWED + 1)] == [1] + [2] * MOST_BORROWED
    assert remote(lambda: 5) == 5, "a function of the test's"


def test_objects_that_the_test_needs_no_more_are_forgotten(ends):
    remote = ends.tester.ask("thing")
    assert list(ends.response._references._ours.values()) == [ends.thing]
    del remote
    gc.collect()
    kept = ends.tester.ask("thing")
    assert list(ends.response._references._ours.values()) == [ends.thing]
    other = ends.tester.ask("thing")
    assert kept is other, "it stands for the same object"


def test_errors_and_answers_that_end_a_tests_loop_are_told_apart(ends):
    remote = ends.tester.ask("thing")
    with pytest.raises(AttributeError, match="nothing"):
        remote.nothing  # noqa: B018

    class Own(ValueError):
        pass

    def fails(error):
        def act():
            raise error

        return act

    for error, raised in ((Own("bad", 3), ValueError), (StopIteration(), RuntimeError), (KeyError("k"), KeyError)):
        ends.response.operations["fails"] = fails(error)
        with pytest.raises(raised) as caught:
            ends.tester.ask("fails")
        assert "StopIteration" in str(caught.value) if raised is RuntimeError else caught.value.args == error.args
    with pytest.raises(TypeError, match="no operation 'unknown'"):
        ends.tester.ask("unknown")
    ends.response.version = lambda: 9
    assert remote.number == 1 and ends.tester.seen == 9


def test_what_a_test_replaces_stands_in_for_the_time_of_a_call(ends):
    def say(*words):
        said.append(words)

    said = []
    ends.response.operations["say"] = lambda: print("hi", 3)
    ends.tester.mirrored = lambda: {"builtins:print": say, "random:choice": say, "os:environ": {"SAID": "yes"}}
    ends.tester.ask("say")
    assert said == [("hi", 3)] and builtins.print is print and random.choice([1]) == 1 and "SAID" not in os.environ


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"no json", "sent what is no message"), (json.dumps(["got"]).encode(), "sent what is no message"),
        (json.dumps(["got", 0, ["no such tag"]]).encode(), "sent what is no message"),
        (json.dumps([3, 0]).encode(), "sent what is no message"), (None, f"sent a message of {MOST_BYTES + 1} bytes"),
        (b"", "closed its connection"),
    ],
)  # fmt: skip
def test_what_is_no_message_ends_the_link(message, says):
    ours, theirs = socket.socketpair()
    tester = ProcessLink(ours, is_tester=True)
    theirs.sendall(LENGTH.pack(MOST_BYTES + 1) if message is None else LENGTH.pack(len(message) or 9) + message)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkLost, match=says):
        tester.ask("getattr", 1, "x")
    assert tester.lost.startswith(says[:12])
    theirs.close()
    with pytest.raises(LinkLost):
        tester.ask("getattr", 1, "x")
    assert tester.lost.startswith(says[:12]), "the first reason is kept"
