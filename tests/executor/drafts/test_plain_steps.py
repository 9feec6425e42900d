"""Steps without drafts are prepared as those of an engine that cannot draft."""

from types import SimpleNamespace

import pytest

from rlplan.executor.drafts.plain_steps import sample_plainly


def runner(**model):
    """A model runner that tells by which options it prepared a step."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(**{"is_hybrid": False, "is_attention_free": False} | model),
        speculative_config="drafts",
    )

    def prepare(scheduled, tokens):
        if tokens is None:
            raise ValueError("no tokens")
        return made.speculative_config, tokens

    made._prepare_inputs = prepare
    return made


def step(drafts):
    return SimpleNamespace(scheduled_spec_decode_tokens=drafts)


def test_only_steps_without_drafts_are_prepared_without_them_and_the_options_stay():
    made = runner()
    sample_plainly(made)
    assert made._prepare_inputs(step({}), 3) == (None, 3) and made.speculative_config == "drafts"
    assert made._prepare_inputs(step({"a": [1]}), 3) == ("drafts", 3)
    with pytest.raises(ValueError):
        made._prepare_inputs(step({}), None)
    assert made.speculative_config == "drafts"


@pytest.mark.parametrize("kind", ["is_hybrid", "is_attention_free"])
def test_models_with_recurrent_states_are_left_as_they_are(kind):
    made = runner(**{kind: True})
    sample_plainly(made)
    assert made._prepare_inputs(step({}), 3) == ("drafts", 3)
