"""A campaign of faults: bursts of ten faults, each fault at a random moment of a running step."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .driver import START_DEADLINE_S, Driver
from .injectors import INJECTORS

BURST = 10
"""Faults of a burst come within seconds of each other; the next burst waits until the run has made a step."""
SPREAD_S = 2.0
RECOVERY_DEADLINE_S = 240.0
STRIKE_S = 20.0
"""In which a fault finds a process of its kind, or another fault strikes in its place."""


@dataclass
class Campaign:
    """The faults that struck the run, and how the run took them.

    Attributes:
        faults: how often each kind of fault struck.
        unrecovered: faults of bursts after which the run made no step in time, plus 1 if the run did not end.
        left_processes: processes of the run that were still there when it had ended.
        seconds: from the driver's first start to its end.
        driver_starts: how often the driver was started.
    """

    faults: Counter[str] = field(default_factory=Counter)
    unrecovered: int = 0
    left_processes: int = 0
    seconds: float = 0.0
    driver_starts: int = 0


def draw(count: int, rng: random.Random) -> list[str]:
    """Names of `count` faults in random order, in proportion to their weights, each at least once if `count` allows."""
    kinds = list(INJECTORS)
    names = kinds + rng.choices(kinds, [weight for weight, _ in INJECTORS.values()], k=max(0, count - len(kinds)))
    rng.shuffle(names)
    return names[:count]


def campaign(driver: Driver, count: int, seed: int, tell: Callable[[str], None]) -> Campaign:
    """Let `count` faults strike the run and wait for its end."""
    rng = random.Random(seed)
    done, began = Campaign(), time.monotonic()
    waiting = draw(count, rng)
    bursts = -(-count // BURST)
    driver.wait_for_step(1, START_DEADLINE_S)
    for number in range(bursts):
        # Spread over the run, so that neither all faults meet its first steps nor the run ends before the last one.
        driver.wait_for_step(1 + number * (driver.steps - 3) // bursts, START_DEADLINE_S)
        struck = 0
        for name in waiting[number * BURST : (number + 1) * BURST]:
            time.sleep(rng.uniform(0.0, SPREAD_S))
            while not driver.done():
                if _strike(driver, name, rng, tell, began):
                    done.faults[name] += 1
                    struck += 1
                    break
                name = rng.choice(list(INJECTORS))  # there was nothing to strike
        if not driver.wait_for_step(driver.step() + 1, RECOVERY_DEADLINE_S):
            tell(f"{time.monotonic() - began:6.1f} s: no step within {RECOVERY_DEADLINE_S:g} s, driver is killed")
            done.unrecovered += struck
            driver.kill()
    if not driver.wait_until_done(START_DEADLINE_S):
        done.unrecovered += 1
    done.seconds, done.driver_starts = time.monotonic() - began, driver.starts
    time.sleep(2.0)  # Ray ends its processes a moment after the driver
    left = driver.left()
    for process in left:
        tell(f"still there: {process.command} (process {process.pid}, of {process.parent})")
    done.left_processes = len(left)
    return done


def _strike(driver: Driver, name: str, rng: random.Random, tell: Callable[[str], None], began: float) -> bool:
    """Strike once; returns whether it did. Waits for a process of the kind: an earlier fault may have ended it."""
    end = time.monotonic() + STRIKE_S
    while time.monotonic() < end and not driver.done():
        driver.ensure()
        effect = INJECTORS[name][1](driver, rng)
        driver.ensure()
        if effect is not None:
            tell(f"{time.monotonic() - began:6.1f} s, after step {driver.step()}: {effect}")
            return True
        time.sleep(0.25)
    return False
