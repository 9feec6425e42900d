"""Seeds: own luck for each sample, the same luck for the same draw in every run."""

from rlplan.rounds.machines.events import Issue, SampleKey
from rlplan.rounds.seeds import RoundSeeds, SeedLedger


def seeds(base=0, epoch=0, cut=None):
    return RoundSeeds(base, lambda prompt: epoch, cut)


def test_no_two_samples_of_a_run_share_a_seed():
    lines = [seeds(base, epoch, cut) for base in (0, 1) for epoch in (0, 1) for cut in (None, 0, 1, 2)]
    names = [(f"k{p}", draw, sample) for p in range(30) for draw in range(4) for sample in range(4)]
    found = [line.of(*name) for line in lines for name in names]
    assert len(set(found)) == len(found), "nor a draw that may be cut, and its replacement"
    assert min(found) >= 0 and 2**31 < max(found) < 2**32


def test_a_seed_stays_what_it_was_in_earlier_versions():
    """A resumed run draws as the uninterrupted one, whichever version wrote its checkpoint."""
    assert [seeds(cut=cut).of("k", 1, 2) for cut in (None, 5)] == [315715778, 913958158]


def test_names_that_look_alike_when_joined_are_told_apart():
    line = seeds(1, 11)
    assert line.of("k", 1, 11) != line.of("k", 11, 1)
    assert line.of("1:k", 1, 1) != line.of("k", 1, 11)


def test_a_prompt_has_the_seed_of_the_epoch_that_issued_it():
    mixed = RoundSeeds(0, {"k": 3, "l": 4}.__getitem__, None)
    assert mixed.of("k", 0, 1) == seeds(epoch=3).of("k", 0, 1)
    assert mixed.of("l", 0, 1) == seeds(epoch=4).of("l", 0, 1)


def drawn(ledger, draw, *samples, prompt="p"):
    """The seeds of issues of a draw."""
    return [ledger.issue(Issue(SampleKey(draw, sample), prompt, 9)) for sample in samples]


def named(nth, *samples, prompt="p"):
    return [seeds(3).of(prompt, nth, sample) for sample in samples]


def test_draws_of_a_prompt_have_luck_of_their_own_by_their_order():
    ledger = SeedLedger(seeds(3))
    assert drawn(ledger, 0, 0, 1) == named(0, 0, 1) and drawn(ledger, 4, 0, 1) == named(1, 0, 1)
    assert drawn(ledger, 5, 0, prompt="q") == named(0, 0, prompt="q")
    assert ledger.seed(SampleKey(4, 1)) == named(1, 1)[0]


def test_a_lost_sample_of_a_draw_that_goes_on_keeps_its_luck():
    ledger = SeedLedger(seeds(3))
    first = drawn(ledger, 0, 0, 1)
    ledger.lose(SampleKey(0, 1))
    assert drawn(ledger, 0, 2, 3) == [first[1], *named(0, 3)]
    ledger.lose(SampleKey(0, 2))
    assert drawn(ledger, 0, 4) == first[1:], "lost again, drawn again"
    assert ledger.seed(SampleKey(0, 4)) == first[1]


def test_a_draw_that_replaces_a_void_one_has_its_luck():
    ledger = SeedLedger(seeds(3))
    first, second = drawn(ledger, 0, 0, 1), drawn(ledger, 1, 0, 1)
    for lost in ((1, 1), (1, 0), (0, 0), (0, 1)):
        ledger.lose(SampleKey(*lost))
    assert drawn(ledger, 2, 0, 1) == second, "that of the first that was lost"
    assert drawn(ledger, 3, 0, 1) == first
    assert drawn(ledger, 4, 0, 1) == named(2, 0, 1), "the next draw has its own"
