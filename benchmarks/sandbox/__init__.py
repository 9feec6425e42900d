"""Sixty hostile programs against the sandbox of `code` rewards, and what a short test costs in it.

    python -m benchmarks.sandbox [--repeats 100] [--json]

Each program (`programs.py`) is a response whose solution is wrong: its test asks for `f(3) == 9`. Twenty of them have
tests of other forms: input and output, calls with results, unittest, pytest, numpy. It tries to harm
the host, or to get a reward all the same. What it may harm is real: a file with a secret that all may read,
one that the user may write, a TCP and a Unix server, a process of the same user, the worker itself, and
the host's memory. After each program
the benchmark looks whether all of that is as it was, whether the program says that it got through, whether one of its
processes is left, and whether the same worker still tells a right solution from a wrong one.

- `harmful`: programs after which something was not as before, or that got what they were after;
- `verdict_forged`: programs that were judged right;
- `controls`: by category, whether a program of it reaches its aim where nothing holds it (a plain Python process that
  runs response and tests in one module); null where that would not be harmless to try;
- `ms_overhead`: milliseconds that a sandbox adds to a short test, the median of the repeats: the time of
  `WarmSandbox.run` less the time that the same program takes in this process. Each test follows at once on another one,
  as in a worker that has a queue. In `ms_overhead_spaced` the worker has had 20 ms to make the sandbox, as where
  responses end one by one. `ms_new_interpreter` is what a new Python process for each test, without any isolation,
  adds; all are measured in turns. On a busy machine all of them grow;
- `ms_case`: milliseconds of one more case of input and output, each of which has a process of its own;
- `notes`: what this host lacks of the sandbox.

    {"programs": 60, "harmful": 0, "verdict_forged": 0, "ms_overhead": …, "ms_overhead_spaced": …,
     "ms_new_interpreter": …, "ms_case": …, "controls": {…}, "stopped": {program: what stopped it}, "notes": []}

What it cannot show: tests that leave the decision to an object of the response's own class (`remote_objects.py`), and
faults of the kernel itself.
"""
