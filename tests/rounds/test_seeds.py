"""Seeds: own luck for each sample, the same luck for the same draw in every run."""

from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.machines.events import Issue, SampleKey
from rlplan.rounds.seeds import RoundSeeds, SeedLedger


def in_epoch(number):
    return lambda prompt: number


names = st.tuples(st.text(min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 16))


@given(base=st.integers(-5, 5), epoch=st.integers(0, 3), cut=st.none() | st.integers(0, 40), name=names)
def test_a_seed_is_a_function_of_its_name_and_fits_into_32_bits(base, epoch, cut, name) -> None:
    seed = RoundSeeds(base, in_epoch(epoch), cut).of(*name)
    assert seed == RoundSeeds(base, in_epoch(epoch), cut).of(*name)
    assert 0 <= seed < 2**32


def test_no_two_samples_of_a_run_share_a_seed() -> None:
    lines = [RoundSeeds(0, in_epoch(epoch), cut) for epoch in (0, 1) for cut in (None, 0, 1, 2)]
    seeds = [
        line.of(f"k{p}", draw, sample) for line in lines for p in range(40) for draw in range(4) for sample in range(4)
    ]
    assert len(set(seeds)) == len(seeds)


def test_names_that_look_alike_when_joined_are_told_apart() -> None:
    line = RoundSeeds(1, in_epoch(11), None)
    assert line.of("k", 1, 11) != line.of("k", 11, 1)
    assert line.of("1:k", 1, 1) != line.of("k", 1, 11)


def test_a_draw_that_may_be_cut_and_its_replacement_are_unlike_and_whole_draws_agree_between_rounds() -> None:
    cut, again, whole = (RoundSeeds(0, in_epoch(0), number) for number in (5, 6, None))
    assert len({s.of("k", 0, 0) for s in (cut, again, whole)}) == 3
    assert whole.of("k", 0, 0) == RoundSeeds(0, in_epoch(0), None).of("k", 0, 0)


def test_in_a_round_of_two_epochs_each_prompt_has_the_seed_of_the_epoch_that_issued_it() -> None:
    mixed = RoundSeeds(0, {"k": 3, "l": 4}.__getitem__, None)
    assert mixed.of("k", 0, 1) == RoundSeeds(0, in_epoch(3), None).of("k", 0, 1)
    assert mixed.of("l", 0, 1) == RoundSeeds(0, in_epoch(4), None).of("l", 0, 1)


SEEDS = RoundSeeds(3, in_epoch(0), None)


def issue(draw, sample, prompt="p"):
    return Issue(SampleKey(draw, sample), prompt, 9)


def test_draws_of_a_prompt_have_luck_of_their_own_by_their_order():
    state = SeedLedger(SEEDS)
    seeds = [state.issue(issue(draw, sample)) for draw in (0, 4) for sample in (0, 1)]
    assert seeds == [SEEDS.of("p", nth, sample) for nth in (0, 1) for sample in (0, 1)]
    assert state.issue(issue(5, 0, "q")) == SEEDS.of("q", 0, 0)


def lose(state, *keys):
    for key in keys:
        state.lose(SampleKey(*key))


def test_a_lost_sample_of_a_draw_that_goes_on_is_drawn_with_the_same_luck():
    state = SeedLedger(SEEDS)
    first = [state.issue(issue(0, sample)) for sample in (0, 1)]
    lose(state, (0, 1))
    assert state.issue(issue(0, 2)) == first[1]
    assert state.issue(issue(0, 3)) == SEEDS.of("p", 0, 3)
    lose(state, (0, 2))
    assert state.issue(issue(0, 4)) == first[1], "lost again, drawn again"


def test_a_draw_that_replaces_a_void_one_has_its_luck_and_the_next_draw_its_own():
    state = SeedLedger(SEEDS)
    first = [state.issue(issue(0, sample)) for sample in (0, 1)]
    second = [state.issue(issue(1, sample)) for sample in (0, 1)]
    lose(state, (0, 0), (0, 1))
    assert [state.issue(issue(2, sample)) for sample in (0, 1)] == first
    assert [state.issue(issue(3, sample)) for sample in (0, 1)] == [SEEDS.of("p", 2, sample) for sample in (0, 1)]
    assert len({*first, *second}) == 4
