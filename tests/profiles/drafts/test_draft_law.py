"""What a step with drafts verifies, gives and takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.drafts.draft_law import DraftLaw, geometric

shares = st.floats(0, 1)


@st.composite
def laws(draw: st.DrawFn) -> DraftLaw:
    pairs = draw(st.lists(st.tuples(shares, shares), min_size=1, max_size=6))
    factors = draw(st.lists(st.floats(0, 3), max_size=3))
    return DraftLaw(
        tuple(drafted for drafted, _ in pairs),
        tuple(drafted * of for drafted, of in pairs),
        tuple((4**place, factor) for place, factor in enumerate(factors)),
        draw(st.floats(0, 0.1)),
        draw(st.floats(0, 0.01)),
    )


def test_tokens_of_one_chance_are_the_mean_of_a_simulated_acceptance() -> None:
    accepted = np.random.default_rng(0).random((200_000, 4)) < 0.7
    mean = 1 + np.cumprod(accepted, axis=1).sum(axis=1).mean()
    assert geometric(4, 0.7).emitted(4, 9) == pytest.approx(mean, rel=0.01)
    assert geometric(4, 0.7).emitted(3, 9) == pytest.approx((1 - 0.7**4) / 0.3)
    assert geometric(4, 0.7).verified(3, 9) == 4.0


@given(laws(), st.integers(1, 300))
def test_a_step_gives_at_least_a_token_and_at_most_what_it_verifies_and_longer_drafts_give_no_less(
    law: DraftLaw, batch: int
) -> None:
    last = 1.0
    for tokens in range(1, law.most_tokens + 1):
        emitted, verified = law.emitted(tokens, batch), law.verified(tokens, batch)
        assert last <= emitted <= verified + 1e-12 <= tokens + 1 + 2e-12
        last = emitted
    assert law.extra_s(batch + 1) >= law.extra_s(batch) >= 0


def test_a_factor_by_batch_is_linear_between_batches_and_constant_beyond_them() -> None:
    law = DraftLaw((0.5, 0.25), (0.4, 0.2), ((2, 1.5), (10, 0.5)))
    assert [law.factor(batch) for batch in (1, 2, 6, 10, 99)] == pytest.approx([1.5, 1.5, 1.0, 0.5, 0.5])
    assert law.verified(2, 6) == pytest.approx(1.75) and law.emitted(2, 99) == pytest.approx(1.3)


def test_what_no_drafts_do_is_refused() -> None:
    for drafted, accepted in (((), ()), ((0.5,), (0.6,)), ((0.5, 0.5), (0.4,)), ((1.2,), (0.1,))):
        with pytest.raises(ValueError, match="draft"):
            DraftLaw(drafted, accepted)
    with pytest.raises(ValueError, match="negative"):
        DraftLaw((0.5,), (0.4,), step_s=-1.0)
    for tokens, acceptance in ((0, 0.5), (3, 1.0), (3, -0.1)):
        with pytest.raises(ValueError, match="drafts have"):
            geometric(tokens, acceptance)
