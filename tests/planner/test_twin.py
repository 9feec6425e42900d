"""The compiled twin against the reference: the same rounds, bit for bit."""

import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.costs import DecodeCost, LayoutKey, RewardCost
from rlplan.planner.simulator import Lengths, RoundTimes, simulate_round
from rlplan.planner.twin import state
from rlplan.planner.twin.machines import MAX_DRAWS
from rlplan.planner.twin.play import Luck, Played, RanOut, TwinRound, play
from rlplan.rounds import exact
from rlplan.rounds.exact import ExactLongRound, ExactShortRound
from rlplan.rounds.outcome import Fate
from rlplan.rounds.race import RaceRound
from rlplan.rounds.round import Round

CAP = 60
FATES = {
    Fate.TRAINED: state.TRAINED,
    Fate.FILTERED: state.FILTERED,
    Fate.DEFERRED: state.DEFERRED,
    Fate.RETURNED: state.RETURNED,
    Fate.DISCARDED: state.DISCARDED,
}


@dataclass
class Case:
    """A round for both: `lengths[prompt, nth draw, sample]`."""

    spec: TwinRound
    lengths: np.ndarray
    rewards: np.ndarray
    prompt_tokens: np.ndarray
    expected_tokens: float

    def name(self, prompt: int) -> str:
        return f"p{prompt:04d}"

    def machine(self) -> Round:
        spec = self.spec
        fresh = [self.name(i) for i in range(spec.prompts, len(self.lengths))]

        def take(count: int) -> list[str]:
            taken = fresh[:count]
            del fresh[:count]
            return taken

        names = [self.name(i) for i in range(spec.prompts)]
        dynamic = spec.dynamic_sampling
        if spec.kind == state.EXACT_SHORT:
            return ExactShortRound(
                names,
                spec.target,
                spec.group_size,
                spec.cutoff_tokens,
                spec.max_tokens,
                dynamic_sampling=dynamic,
                take=take,
            )
        if spec.kind == state.EXACT_LONG:
            return ExactLongRound(
                names, spec.group_size, spec.cutoff_tokens, spec.copies, spec.max_tokens, dynamic_sampling=dynamic
            )
        return RaceRound(
            names,
            spec.target,
            spec.group_size,
            spec.samples,
            spec.max_tokens,
            dynamic_sampling=dynamic,
            take=take,
            kind="short" if spec.refills else "long",
        )

    def reference(self, decode: DecodeCost, reward: RewardCost, limit: int) -> tuple[Round, RoundTimes]:
        machine = self.machine()

        def nth(draw: int) -> int:
            prompt = machine.draws[draw].prompt
            return sum(d.prompt == prompt for d in machine.draws[:draw])

        lengths = Lengths(
            natural=lambda key, prompt: int(self.lengths[int(prompt[1:]), nth(key.draw), key.sample]),
            prompt_tokens=lambda prompt: int(self.prompt_tokens[int(prompt[1:])]),
            reward=lambda key, prompt: float(self.rewards[int(prompt[1:]), nth(key.draw), key.sample]),
            cap_tokens=CAP,
            expected_tokens=self.expected_tokens,
        )
        return machine, simulate_round(machine, lengths, decode, reward, limit)

    def luck(self) -> Luck:
        prompts, draws, width = self.lengths.shape
        long = self.spec.kind == state.EXACT_LONG
        kept = draws if long else 1
        return Luck(
            lengths=self.lengths[:, :kept].reshape(prompts * kept, width).astype(np.int32),
            prompt_tokens=self.prompt_tokens.astype(np.int32),
            cap_tokens=CAP,
            expected_tokens=self.expected_tokens,
            rewards=self.rewards[:, :kept].reshape(prompts * kept, width),
            offset=np.arange(prompts, dtype=np.int32) * kept if long else 0,
        )


def assert_same(case: Case, decode: DecodeCost, reward: RewardCost, limit: int) -> Played:
    machine, times = case.reference(decode, reward, limit)
    played = play(case.spec, case.luck(), decode, reward, limit)
    assert played.times == times
    assert [FATES[d.fate] for d in machine.draws if d.fate is not None] == played.fate.tolist()
    assert [d.prompt for d in machine.draws] == [case.name(p) for p in played.prompt]
    outcome = machine.outcome()
    trained = {
        (g.prompt, key.sample): tokens for g in outcome.trained for key, tokens in zip(g.keys, g.tokens, strict=True)
    }
    assert trained == {
        (case.name(int(played.prompt[d])), int(s)): int(played.tokens[d, s]) for d, s in np.argwhere(played.kept)
    }
    assert sorted(outcome.exhausted) == [case.name(int(p)) for p in np.flatnonzero(played.exhausted)]
    return played


@st.composite
def cases(draw) -> Case:
    kind = draw(st.sampled_from([state.RACE, state.EXACT_SHORT, state.EXACT_LONG]))
    prompts, group = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    long = kind == state.EXACT_LONG
    dynamic = draw(st.booleans())
    fresh = 0 if long else draw(st.integers(0, 5))
    samples = group + (draw(st.integers(0, 2)) if kind == state.RACE else 0)
    refills = draw(st.booleans()) or kind != state.RACE
    spec = TwinRound(
        kind=kind,
        prompts=prompts,
        target=prompts if long else draw(st.integers(1, prompts)),
        group_size=group,
        samples=samples,
        max_tokens=CAP,
        cutoff_tokens=0 if kind == state.RACE else draw(st.integers(1, CAP - 1)),
        copies=draw(st.integers(1, 3)) if long else 1,
        refills=refills,
        dynamic_sampling=dynamic,
    )
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    shape = (prompts + (fresh if refills else 0), MAX_DRAWS if long else 1, samples)
    # Ties in length, and hence in time, are common; so are whole groups that end at once.
    lengths = np.minimum(rng.geometric(draw(st.sampled_from([0.02, 0.05, 0.3])), size=shape), CAP)
    rewards = rng.integers(0, 2, size=shape).astype(float)
    return Case(spec, lengths, rewards, rng.integers(1, 9, size=shape[0]), draw(st.sampled_from([1.0, 17.3])))


@st.composite
def costs(draw) -> DecodeCost:
    whole = draw(st.booleans())  # whole numbers make events of several engines simultaneous
    unit = 1.0 if whole else 0.137
    return DecodeCost(
        key=LayoutKey(1, draw(st.integers(1, 4))),
        a=7 * unit,
        b=draw(st.sampled_from([0.0, 0.6])) * unit,
        c=draw(st.sampled_from([0.0, 0.09])) * unit,
        prefill_s=draw(st.sampled_from([0.0, 2.0])) * unit,
        prefill_s_per_token=unit / 7,
        kv_capacity_tokens=draw(st.sampled_from([CAP + 9, 160, 10**6])),
        max_sequences=10**6,
        sync_s=0.0,
        host_bytes=1,
        round_s=draw(st.sampled_from([0.0, 3.0])) * unit,
        finish_s=draw(st.sampled_from([0.0, 0.16])) * unit,
    )


rewards = st.builds(
    RewardCost, workers=st.integers(1, 5), per_sample_s=st.sampled_from([0.0, 1.0, 11.3]), delay_s=st.floats(0, 30)
)


@settings(max_examples=400, deadline=None)
@given(case=cases(), decode=costs(), reward=rewards, limit=st.integers(1, 12))
def test_the_twin_gives_the_references_times_fates_and_trained_samples(case, decode, reward, limit) -> None:
    assert_same(case, decode, reward, limit)


@pytest.mark.parametrize("kind", [state.RACE, state.EXACT_SHORT, state.EXACT_LONG])
def test_a_large_round_under_memory_pressure_is_the_same_too(kind: int) -> None:
    rng = np.random.default_rng(3)
    shape = (48, MAX_DRAWS if kind == state.EXACT_LONG else 1, 5 if kind == state.RACE else 4)
    lengths = np.minimum(1 + rng.exponential(14, size=shape).astype(int), CAP)
    spec = TwinRound(kind, 30, 24, 4, shape[2], CAP, 0 if kind == state.RACE else 25, copies=2)
    if kind == state.EXACT_LONG:
        spec = TwinRound(kind, 30, 30, 4, 4, CAP, 25, copies=2)
        lengths = lengths[:30]
    case = Case(spec, lengths, np.zeros(lengths.shape), rng.integers(1, 9, size=len(lengths)), 13.7)
    decode = DecodeCost(LayoutKey(1, 3), 0.7, 0.013, 0.00171, 0.1, 0.013, 220, 99, 0.0, 1, 0.3, 0.017)
    played = assert_same(case, decode, RewardCost(2, 0.013, 0.41), 64)
    assert played.times.preemptions > 10


def test_a_round_that_wants_more_of_the_feed_than_it_was_given_says_so() -> None:
    spec = TwinRound(state.EXACT_SHORT, 2, 2, 2, 2, CAP, 10)
    lengths = np.array([[5, 5], [40, 5]], dtype=np.int32)
    decode = DecodeCost(LayoutKey(1, 1), 1.0, 0.0, 0.0, 0.0, 0.0, 10**6, 99, 0.0, 1)
    luck = Luck(lengths, np.ones(2, dtype=np.int32), CAP, 1.0, more=True)
    with pytest.raises(RanOut):
        play(spec, luck, decode, RewardCost(1, 0.0, 0.0), 9)
    ended = play(spec, Luck(lengths, np.ones(2, dtype=np.int32), CAP, 1.0), decode, RewardCost(1, 0.0, 0.0), 9)
    assert ended.fate.tolist() == [state.TRAINED, state.DEFERRED]


def test_both_give_up_on_a_prompt_after_as_many_draws() -> None:
    assert MAX_DRAWS == exact.MAX_DRAWS


def test_the_twin_works_where_no_cache_folder_is_writable(tmp_path) -> None:
    code = (
        "import numba.core.caching as c\n"
        "def refuse(self): raise OSError('read-only')\n"
        "c._CacheLocator.ensure_cache_path = refuse\n"
        "from rlplan.planner.twin.compiled import entry\n"
        "print(entry(lambda x: x + 1)(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/", env={**os.environ}
    )
    assert done.stdout.strip() == "2"
