"""What parties of a transfer tell each other, over a real store: who waits is freed, or told why not."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch")

from rlplan.executor.weights.transfer import message_board
from rlplan.executor.weights.transfer.message_board import MessageBoard, TransferBroken


def test_parties_meet_over_the_drivers_store(monkeypatch):
    monkeypatch.setattr(message_board, "LOOK_S", 0.02)
    driver = MessageBoard("127.0.0.1", 0, 0.3, serves=True)
    party = MessageBoard("127.0.0.1", driver.port, 0.3)
    with pytest.raises(TransferBroken, match="waited 0 s for bucket 3"):
        party.wait("full", "bucket 3")
    told = []
    for number, board in enumerate((driver, party)):
        assert told == []
        board.arrive("full", 2, lambda number=number: told.append(number))
    driver.wait("full", "bucket 3")
    assert told == [1], "the last one"
    driver.forget("full")
    kept = driver._store.num_keys()
    driver.tell("handle", "text")
    assert party.hear("handle", "the handle") == "text"
    assert driver._store.num_keys() <= kept, "what was heard is gone"
    party._deadline_s = 60.0
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(party.wait, "never", "nothing")
        driver.end("engine 0 died")
        driver.end("too late")
        with pytest.raises(TransferBroken, match=r"^engine 0 died$"):
            waits.result(30)
    del driver
    with pytest.raises(TransferBroken, match="the driver's store is gone"):
        party.check()
    party.end("nobody is there")


def test_a_driver_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(message_board, "CONNECT", timedelta(seconds=0.2))
    port = MessageBoard("127.0.0.1", 0, 1.0, serves=True).port
    with pytest.raises(TransferBroken, match=f"no connection to the driver at 127.0.0.1:{port}: "):
        MessageBoard("127.0.0.1", port, 1.0)
