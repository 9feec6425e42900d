"""What a response may take of the machine: memory of all its processes, of its sockets, and how many processes.

Every case is a real sandbox with a small limit, so that one that does not hold takes little.
"""

import pytest

from rlplan.executor.rewards.sandbox.warm_sandbox import WarmSandbox

MEMORY_BYTES = 96 << 20
TESTS = "assert f() == 1"
TAKE = """
import os, time
def take(mb):
    taken = bytearray(mb << 20)
    for at in range(0, len(taken), 4096): taken[at] = 1
    return taken
def in_copies(count, act):
    for _ in range(count):
        if os.fork() == 0:
            kept = act()
            time.sleep(4)
            os._exit(0)
    time.sleep(4)
"""


def ran(source, memory_bytes=MEMORY_BYTES, without=(), deadline_s=20.0):
    sandbox = WarmSandbox(memory_bytes, frozenset(without))
    try:
        if not without and (notes := (sandbox.start(), sandbox.notes)[1]):
            pytest.skip(f"this machine lacks parts of it: {notes}")
        return sandbox.run(source, TESTS, deadline_s)
    finally:
        sandbox.close()


@pytest.mark.parametrize("without", [(), ("processes",)])
def test_memory_of_processes_that_another_thread_forked_counts(without):
    source = TAKE + (
        "import threading\ndef f():\n    thread = threading.Thread(target=in_copies, args=(4, lambda: take(40)))\n"
        "    thread.start(); thread.join()\n    return 1\n"
    )
    assert "took more than" in ran(source, without=without).detail


def test_memory_of_a_process_that_lost_its_parent_counts():
    source = TAKE + (
        "def f():\n    if os.fork() == 0:\n        for _ in range(4):\n            if os.fork() == 0:\n"
        "                kept = take(40); time.sleep(4); os._exit(0)\n        os._exit(0)\n"
        "    time.sleep(4)\n    return 1\n"
    )
    assert "took more than" in ran(source, without=("processes",)).detail


def test_processes_that_another_thread_forked_count_where_the_kernel_counts_none():
    source = (
        "import os, threading, time\ndef fork():\n    for _ in range(90):\n        if os.fork() == 0:\n"
        "            time.sleep(4); os._exit(0)\n    time.sleep(4)\n"
        "def f():\n    thread = threading.Thread(target=fork); thread.start(); thread.join()\n    return 1\n"
    )
    detail = ran(source, 1 << 30, without=("user", "root")).detail
    assert detail == "started more than 64 processes"


def test_what_sockets_hold_counts_as_memory():
    source = TAKE + (
        "import socket\ndef fill():\n    pairs = []\n    try:\n        while True:\n"
        "            for each in pairs.append(socket.socketpair()) or pairs[-1]:\n"
        "                each.setblocking(False)\n                try:\n"
        "                    while True: each.send(bytes(65536))\n"
        "                except BlockingIOError: pass\n    except OSError: pass\n    return pairs\n"
        "def f():\n    in_copies(30, fill)\n    return 1\n"
    )
    assert "took more than" in ran(source).detail


def test_tables_of_pages_count_as_memory():
    source = TAKE + (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "def tables():\n    for i in range(15_000):\n"
        "        at = libc.mmap(ctypes.c_void_p((1 << 44) + (i << 21)), ctypes.c_size_t(4096), 1, 0x22, -1, 0)\n"
        "        ctypes.string_at(at, 1)\n"
        "def f():\n    in_copies(4, tables)\n    return 1\n"
    )
    assert "took more than" in ran(source, 192 << 20).detail


@pytest.mark.parametrize(
    "act",
    [
        "import mmap\nmmap.mmap(-1, 1 << 20)",
        "import mmap\nmmap.mmap(open('/dev/zero', 'r+b').fileno(), 1 << 20)",
        "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    ],
)
def test_memory_that_no_limit_counts_is_refused(act):
    detail = ran(f"{act}\ndef f(): return 1\n").detail
    assert detail.startswith(("PermissionError", "FileNotFoundError")), detail


def test_what_programs_usually_need_of_these_is_there():
    source = (
        "import asyncio, mmap, socket, subprocess, sys, tempfile, threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "async def two(): return await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))\n"
        "def f():\n    assert asyncio.run(two()) == [1, 2]\n"
        "    a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1)\n"
        "    with tempfile.TemporaryFile() as file:\n        file.write(bytes(4096)); file.flush()\n"
        "        assert mmap.mmap(file.fileno(), 4096)[0] == 0\n"
        "    assert mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)[0] == 0\n"
        "    with ThreadPoolExecutor(8) as pool: assert sum(pool.map(abs, range(-9, 9))) == 81\n"
        "    assert subprocess.run(['/bin/echo', 'hi'], capture_output=True).stdout == b'hi\\n'\n"
        "    files = [open('f', 'w') for _ in range(20)]\n    return 1\n"
    )
    result = ran(source, 1 << 30)
    assert result.passed, result.detail
