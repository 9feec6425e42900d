from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.trainer.packing import pack

LENGTHS = st.lists(st.integers(1, 300), max_size=60)
BUDGETS = st.integers(1, 400)
RANKS = st.integers(1, 5)


@given(lengths=LENGTHS, budget=BUDGETS, ranks=RANKS)
def test_each_sequence_is_packed_exactly_once(lengths: list[int], budget: int, ranks: int) -> None:
    packed = pack(lengths, budget, ranks)
    assert sorted(i for rank in packed for batch in rank for i in batch) == list(range(len(lengths)))


@given(lengths=LENGTHS, budget=BUDGETS, ranks=RANKS)
def test_only_a_single_sequence_may_exceed_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    for batch in (batch for rank in pack(lengths, budget, ranks) for batch in rank):
        assert len(batch) == 1 or sum(lengths[i] for i in batch) <= budget


@given(lengths=LENGTHS, budget=BUDGETS, ranks=RANKS)
def test_all_ranks_have_the_same_number_of_micro_batches(lengths: list[int], budget: int, ranks: int) -> None:
    packed = pack(lengths, budget, ranks)
    assert len(packed) == ranks
    assert len({len(rank) for rank in packed}) == 1


@given(lengths=LENGTHS, budget=BUDGETS)
def test_one_rank_gets_no_empty_micro_batch(lengths: list[int], budget: int) -> None:
    assert all(pack(lengths, budget)[0])


@given(lengths=LENGTHS, budget=BUDGETS)
def test_there_are_at_most_twice_as_many_micro_batches_as_the_tokens_need(lengths: list[int], budget: int) -> None:
    (batches,) = pack(lengths, budget)
    within = sum(length for length in lengths if length <= budget)
    over = sum(length > budget for length in lengths)
    assert len(batches) - over <= 2 * -(-within // budget)


def test_two_ranks_share_a_heavy_tail_evenly() -> None:
    lengths = [1100, 700, 400, *[100] * 60]
    first, second = (sum(lengths[i] for batch in rank for i in batch) for rank in pack(lengths, 8192, replicas=2))
    assert abs(first - second) <= 100


def test_more_ranks_than_sequences_get_empty_micro_batches() -> None:
    assert pack([5, 9], 10, replicas=3) == [[[1]], [[0]], [[]]]
