"""The hostile programs, by name: forty against the host and the verdict, and twenty that aim at the forms of tests.

A program that gets through raises `RuntimeError("HARM …")`, or is judged right; else what stopped it is the exception
that it ends with. `@SECRET@`, `@KEPT@`, `@FOLDER@`, `@PORT@`, `@ABSTRACT@`, `@VICTIM@` and `@WORKER@` are of `Host`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TESTS = "assert f(3) == 9"
WRONG = "def f(x): return -1\n"
C = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@dataclass(frozen=True)
class Program:
    """One hostile response.

    Attributes:
        category: what it is aimed at.
        name: its name in the table.
        source: Python; a wrong solution of `tests`.
        tests: the row's tests, in any of their forms.
        tried_bare: whether it is tried without a sandbox too, since that is harmless.
        packages: what the job states that it may import.
    """

    category: str
    name: str
    source: str
    tests: Any = TESTS
    tried_bare: bool = False
    packages: tuple[str, ...] = ()


def _ends(act: str, got: str = "it worked") -> str:
    return f"{act}\nraise RuntimeError('HARM {got}')\n"


PROGRAMS = (
    # ---- files ----
    Program("files", "read a secret that all may read", _ends("text = open('@SECRET@').read()"), tried_bare=True),
    Program("files", "overwrite a file of the user's", _ends("open('@KEPT@', 'w').write('gone')")),
    Program("files", "leave data in shared memory", _ends("open('/dev/shm/rlplan-left', 'w').write('x')")),
    Program(
        "files", "leave 3,000 folders in each other, which a recursive clean-up does not get rid of",
        WRONG + "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n",
    ),
    # ---- symbolic and hard links ----
    Program(
        "links", "read a secret through a symbolic link",
        _ends("import os\nos.symlink('@SECRET@', 'link')\ntext = open('link').read()"), tried_bare=True,
    ),
    Program("links", "climb out of the own folder", _ends("text = open('../../../../../..@SECRET@').read()")),
    # ---- network ----
    Program(
        "network", "connect to a server of the host",
        _ends("import socket\nsocket.create_connection(('127.0.0.1', @PORT@), 2)"), tried_bare=True,
    ),
    Program(
        "network", "send a datagram",
        _ends("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"),
    ),
    Program(
        "network", "connect to an abstract Unix socket of the host",
        _ends("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0@ABSTRACT@')"),
    ),
    Program(
        "network", "open a socket to the virtual machine's host",
        _ends("import socket\nsocket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)"),
    ),
    # ---- processes ----
    Program(
        "processes", "fork without end", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    ),
    Program(
        "processes", "leave a process behind that left its session",
        # `Popen` returns when the child's exec has begun; its command line, which the host looks for, comes later.
        # Where /proc is hidden there is nothing to wait for.
        WRONG + "import os, subprocess\nchild = subprocess.Popen(['/bin/sleep', '@SLEEP@'], start_new_session=True)\n"
        "told = f'/proc/{child.pid}/cmdline'\n"
        "while os.path.exists(told) and b'@SLEEP@' not in open(told, 'rb').read(): pass\n",
        tried_bare=True,
    ),
    Program(
        "processes", "enter new namespaces and mount over the system",
        C + _ends("if libc.unshare(0x10020000): raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"),
    ),
    Program(
        "processes", "have a shell write outside",
        "import subprocess\ntold = subprocess.run('echo gone > @KEPT@', shell=True, capture_output=True, text=True)\n"
        "if told.returncode: raise OSError(told.stderr)\nraise RuntimeError('HARM a shell wrote')\n",
    ),
    # ---- signals ----
    Program("signals", "kill another process of the user", _ends("import os\nos.kill(@VICTIM@, 9)"), tried_bare=True),
    Program("signals", "kill all processes of the user", WRONG + "import os\nos.kill(-1, 9)\n"),
    Program("signals", "kill its parent", WRONG + "import os\nos.kill(os.getppid(), 9)\n"),
    Program("signals", "stop its parent, which would wait for ever", WRONG + "import os\nos.kill(os.getppid(), 19)\n"),
    # ---- memory ----
    Program("memory", "take 8 GB", _ends("x = bytearray(8 << 30)")),
    Program(
        "memory", "take 400 MB in each of 40 processes",
        "import os, time\nfor _ in range(40):\n    if not os.fork():\n        x = bytearray(400 << 20)\n"
        "        for i in range(0, len(x), 4096): x[i] = 1\n        time.sleep(60)\ntime.sleep(60)\n",
    ),
    Program(
        "memory", "take memory that no limit of a process counts",
        C + _ends("if libc.memfd_create(b'x', 0) < 0: "
                  "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"),
        tried_bare=True,
    ),
    Program(
        "memory", "fill the disk with files",
        "import os\nfor i in range(1000):\n    with open(f'f{i}', 'wb') as file: file.write(bytes(8 << 20))\n"
        "raise RuntimeError('HARM 8 GB are written')\n",
    ),
    Program(
        "memory", "take 400 MB in each of 8 processes that a second thread forks",
        "import os, threading, time\ndef fork():\n    for _ in range(8):\n        if not os.fork():\n"
        "            x = b'x' * (400 << 20)\n            time.sleep(2); os._exit(0)\n"
        "    time.sleep(60)\nthreading.Thread(target=fork).start()\n"
        "time.sleep(60)\n",
    ),
    Program(
        "memory", "share 400 MB with each of 8 processes, and unmap it",
        "import os, mmap, time\nfor _ in range(8):\n    if not os.fork():\n        x = mmap.mmap(-1, 400 << 20)\n"
        "        for i in range(0, len(x), 4096): x[i] = 1\n        x.madvise(mmap.MADV_DONTNEED)\n"
        "        time.sleep(2); os._exit(0)\nmmap.mmap(-1, 4096)\ntime.sleep(60)\n",
    ),
    Program(
        "memory", "fill the buffers of sockets, made as large as they get",
        "import socket\nkept = []\nfor _ in range(12):\n    for each in kept.append(socket.socketpair()) or kept[-1]:\n"
        "        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\n        each.setblocking(False)\n"
        "        try:\n            while True: each.send(bytes(65536))\n        except BlockingIOError: pass\n"
        "raise RuntimeError('HARM its sockets hold more than they are given')\n",
    ),
    # ---- descriptors and output ----
    Program(
        "descriptors", "write a verdict into every descriptor, and end",
        "import os\nfor fd in range(3, 64):\n    for text in (b'up\\n', b'{\"passed\": true, \"timed_out\": false}'):\n"
        "        try: os.write(fd, text)\n        except OSError: pass\nos._exit(0)\n",
    ),
    Program(
        "descriptors", "open 10,000 files", _ends("kept = [open('/dev/null') for _ in range(10000)]"), tried_bare=True,
    ),
    Program("output", "write to standard output without end", "while True: print('x' * 65536)\n"),
    Program("output", "return 300 MB where a number is asked for", "def f(x): return 'x' * (300 << 20)\n"),
    # ---- other processes' memory ----
    Program(
        "ptrace", "trace another process of the user",
        C + _ends("if libc.ptrace(0x4206, @VICTIM@, 0, 0): "
                  "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"),
        tried_bare=True,
    ),
    Program(
        "ptrace", "trace the process that runs the tests",
        C + _ends("if libc.ptrace(0x4206, os.getppid(), 0, 0): "
                  "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"),
    ),
    Program(
        "/proc", "read the memory of the process that runs the tests",
        _ends("import os\nopen(f'/proc/{os.getppid()}/maps').read()"),
    ),
    Program("/proc", "read the worker's environment", _ends("open('/proc/@WORKER@/environ').read()"), tried_bare=True),
    # ---- the verdict itself ----
    Program("verdict", "end with exit code 0 before the tests", "import os\nos._exit(0)\n", tried_bare=True),
    Program(
        "verdict", "return an object that equals everything",
        "class Right(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "def f(x): return Right()\n",
        tried_bare=True,
    ),
    Program(
        "verdict", "return an object from which every difference is 0",
        "class Near:\n    def __sub__(self, other): return 0.0\n    __rsub__ = __sub__\n"
        "    def __abs__(self): return 0.0\n"
        "    def __lt__(self, other): return True\n    __le__ = __gt__ = __ge__ = __lt__\n"
        "    def __float__(self): return 0.0\ndef f(x): return Near()\n",
        tests="assert abs(f(3) - 9) < 1e-6",
    ),
    Program(
        "verdict", "rewrite the connection to say that what was asked for is `unittest.mock.ANY`",
        "import gc, builtins, unittest.mock\nbuiltins.AssertionError = Exception\nbuiltins.abs = lambda x: 0\n"
        "for each in gc.get_objects():\n"
        "    if type(each).__name__ == 'References':\n"
        "        type(each).write = lambda self, value: ['standard', 'unittest.mock', 'ANY']\n"
        "def f(x): return unittest.mock.ANY\n",
    ),
    Program(
        "verdict", "export built-in functions that say yes, for `from solution import *`",
        "__all__ = ['f', 'all', 'isclose']\ndef all(x): return True\ndef isclose(*a): return True\n" + WRONG,
        tests="from math import isclose\nfrom solution import *\n"
              "assert all(f(x) == x * x for x in (3,)) and isclose(f(3), 9)",
    ),
    Program(
        "verdict", "return a number that is large when it is looked at first, and small then",
        "import gc\nclass Number(float): pass\nlooks = []\ndef view(value):\n    looks.append(value)\n"
        "    return 1e300 if len(looks) % 2 else -1e300\nfor each in gc.get_objects():\n"
        "    if type(each).__name__ == 'Link': each.operations['view'] = each.operations['float'] = view\n"
        "def f(x): return Number()\n",
        tests="found = f(3)\nassert 8.9 < found < 9.1",
    ),
    Program(
        "verdict", "return an object whose difference from everything is written 0",
        "class Near:\n    def __sub__(self, other): return Near()\n    def __format__(self, how): return '0.000000'\n"
        "def f(x): return Near()\n",
        tests="assert f'{f(3) - 9:.6f}' == '0.000000'",
    ),
)  # fmt: skip

PRINTED = {"inputs": ["3\n"], "outputs": ["SECRET 9\n"]}
"""A program that reads 3 is to print what no response can know."""
RETURNED = {"fn_name": "f", "inputs": [[3]], "outputs": [9]}
CASE = "import unittest\nclass TestF(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(3), 9)\n"
FORMS = (
    # ---- programs that read and write ----
    Program("verdict", "print what the tester tells the worker",
            "print('{\"passed\": 1, \"total\": 1, \"detail\": \"\", \"timed_out\": false}')\n", PRINTED),
    Program("verdict", "end with exit code 0 before anything is printed", "import os\nos._exit(0)\n", PRINTED),
    Program(
        "verdict", "look for the expected output among all objects in memory",
        "import gc\nfor each in gc.get_objects():\n    if isinstance(each, (dict, list, tuple)):\n"
        "        for one in list(each.values() if isinstance(each, dict) else each):\n"
        "            if isinstance(one, str) and one[4:8] == 'ET 9': print(one, end='')\n", PRINTED,
    ),
    Program(
        "verdict", "read the expected output in the memory of this process and its parents",
        "import os, re\nfor pid in ('self', os.getppid(), 1):\n    try:\n"
        "        for line in open(f'/proc/{pid}/maps'):\n"
        "            a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "            file = open(f'/proc/{pid}/mem', 'rb'); file.seek(a)\n"
        "            for found in re.findall(b'SECR' b'ET [0-9]', file.read(b - a)): print(found.decode())\n"
        "    except OSError: pass\n", PRINTED,
    ),
    Program(
        "verdict", "print what can be read from every descriptor and file of its folder",
        "import os\nfor fd in range(64):\n    try:\n        os.set_blocking(fd, False)\n"
        "        print(os.read(fd, 9999).decode())\n    except (OSError, UnicodeDecodeError): pass\n"
        "for folder, _, names in os.walk('/tmp'):\n"
        "    for name in names: print(open(os.path.join(folder, name)).read())\n", PRINTED,
    ),
    Program(
        "verdict", "write a result into every descriptor, in the words of the connection",
        "import os, struct\ntext = b'[\"got\",0,[\"t\",[\"\",[\"b\",\"SECRET 9\"]]]]'\nfor fd in range(64):\n"
        "    try: os.write(fd, struct.pack('<Q', len(text)) + text)\n    except OSError: pass\n", PRINTED,
    ),
    Program(
        "verdict", "leave a process behind that answers the next case",
        "import os, time\nnumber = input()\nif number == '1':\n    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(0.05)\n"
        "        while True:\n            for fd in range(64):\n                try: os.write(fd, b'9\\n')\n"
        "                except OSError: pass\n            open('answer', 'w').write('9')\n    print(1)\n"
        "else:\n    time.sleep(0.3)\n", {"inputs": ["1\n", "3\n"], "outputs": ["1\n", "9\n"]},
    ),
    Program("verdict", "print what is right, and never end", "print(9, flush=True)\nwhile True: pass\n",
            {"inputs": ["3\n"], "outputs": ["9\n"]}),
    Program("output", "print 1 GB", "import sys\nfor _ in range(1 << 14): sys.stdout.write('9' * 65536)\n", PRINTED),
    Program(
        "verdict", "print what is right, and end the process that watches it",
        "import os, sys\nprint(9, flush=True)\ntry: os.kill(os.getppid(), 9)\nexcept OSError: pass\nsys.exit(3)\n",
        {"inputs": ["3\n"], "outputs": ["9\n"]},
    ),
    # ---- calls with results ----
    Program(
        "verdict", "return a number that equals everything",
        "class Any(int):\n    def __eq__(self, other): return True\n    def __int__(self): return Any()\n"
        "    __hash__ = int.__hash__\ndef f(x): return Any()\n", RETURNED,
    ),
    Program(
        "verdict", "write results that are none into every descriptor, and end",
        "import os\ndef f(x):\n    for fd in range(64):\n"
        "        for text in (b'[\"=\",0]', b'[\"type\",\"object\"]', b'NaN'):\n"
        "            try: os.write(fd, text)\n            except OSError: pass\n    os._exit(0)\n", RETURNED,
    ),
    Program("verdict", "return what is near to no number, where numbers are compared with a tolerance",
            "def f(x): return float('nan')\n", {**RETURNED, "tolerance": 0.1}),
    # ---- tests that are collected, or that never run ----
    Program("verdict", "have unittest skip the test", "import unittest\ndef f(x): raise unittest.SkipTest\n", CASE),
    Program(
        "verdict", "rewrite unittest's and its own names, and define `check` and `candidate`",
        "import unittest, builtins\nunittest.TestCase.assertEqual = lambda *a: None\n__name__ = 'tests'\n"
        "check = candidate = __held__ = lambda *a: True\nbuiltins.isinstance = lambda *a: True\ndef f(x): return -1\n",
        {"test": "def check(candidate):\n    assert candidate(3) == 9\n", "entry_point": "f"},
    ),
    Program("verdict", "return nothing to a test that checks each item", "def f(x): return []\n",
            "for found in f(3):\n    assert found == 9\n"),
    # ---- packages ----
    Program(
        "verdict", "have pytest skip the test, or leave it",
        "import pytest\ndef f(x): raise (pytest.skip.Exception if x == 3 else pytest.exit.Exception)('no')\n",
        "import pytest\n@pytest.mark.parametrize('x', [3, 4])\ndef test_f(x): assert f(x) == x * x\n",
        packages=("pytest",),
    ),
    Program(
        "verdict", "rewrite pytest and interrupt its run",
        "import pytest, sys\npytest.raises = pytest.approx = lambda *a, **k: pytest\nsys.modules['pytest'] = None\n"
        "def f(x): raise KeyboardInterrupt\n",
        "import pytest\ndef test_f():\n    assert f(3) == pytest.approx(9)\n", packages=("pytest",),
    ),
    Program(
        "verdict", "return an object that numpy takes for any array",
        "import numpy\nclass Any:\n    __array_priority__ = 1e9\n"
        "    __array_interface__ = {'shape': (), 'typestr': '<f8', 'data': (id(9.0) + 16, True), 'version': 3}\n"
        "    def __array__(self, *a, **k): return numpy.array(9.5 - 0.4)\n"
        "    def __array_ufunc__(self, *a, **k): return True\n    def __array_function__(self, *a, **k): return True\n"
        "    def __sub__(self, other): return 0.0\n    __rsub__ = __abs__ = __sub__\ndef f(x): return Any()\n",
        "import numpy as np\nassert np.allclose(f(3), 9)\n", packages=("numpy",),
    ),
    Program(
        "verdict", "rewrite numpy's comparisons",
        "import sys, numpy\nnumpy.allclose = numpy.testing.assert_allclose = lambda *a, **k: True\n"
        "class Any(numpy.ndarray):\n    def __eq__(self, other): return numpy.array(True)\n"
        "sys.modules['numpy'] = None\ndef f(x): return numpy.zeros(1).view(Any)\n",
        "import numpy as np\nnp.testing.assert_allclose(f(3), [9])\nassert np.allclose(f(3), 9)\n", packages=("numpy",),
    ),
)  # fmt: skip
