"""`--history`: which runs and plans it is refused for, before anything starts."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlplan.executor.drafts.history_store import HISTORY, HistoryStore
from rlplan.executor.prepare import history_of
from rlplan.plans.yaml.errors import InputError


def execution(drafts):
    def kind(drafts):
        return SimpleNamespace(rollout=SimpleNamespace(drafts=drafts))

    rounds = SimpleNamespace(short=kind(None), long=None if drafts is None else kind(drafts))
    job = SimpleNamespace(rounds=rounds)
    return SimpleNamespace(plan=SimpleNamespace(job=job), plan_path=Path("plan.yaml"))


@pytest.fixture
def run(tmp_path):
    store = HistoryStore()
    store.record("p", 0, 0, [([1, 2], 1.0)])
    folder = tmp_path / "checkpoints" / "step-000004"
    folder.mkdir(parents=True)
    (folder / HISTORY).write_bytes(store.packed())
    return tmp_path


def test_a_plan_any_of_whose_rounds_drafts_takes_the_latest_checkpoint(run):
    plans = [execution(None), execution("history")]
    assert history_of(run, plans, resume=False) == run / "checkpoints" / "step-000004"


def test_history_is_refused_where_it_cannot_be_used(run):
    with pytest.raises(InputError, match="leave out --history"):
        history_of(run, [execution("history")], resume=True)
    with pytest.raises(InputError, match="none of its rounds decodes with drafts"):
        history_of(run, [execution(None)], resume=False)
    with pytest.raises(InputError, match="no such run folder"):
        history_of(run / "nowhere", [execution("history")], resume=False)
