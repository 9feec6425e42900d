"""What engines tell of drafts, summed up."""

import numpy as np

from rlplan.executor.drafts.draft_messages import BatchSteps, DraftReport, summed

ONE = DraftReport(
    3, 7, [4, 2], [3, 1], {"earlier": 3, "own": 1}, {1: BatchSteps(1.0, 2.0, 3.0, 4, 5.0, 6, 7, 8, 9)}, 100,
    {"a": np.array([1, 2], np.int32)},
)  # fmt: skip
OTHER = DraftReport(
    1, 2, [5, 5, 5], [], {"own": 2}, {1: BatchSteps(0.0, 4.0, 0.0, 5, 1.0, 1, 1, 1, 1), 3: BatchSteps(verified=2)}, 10,
    {"b": np.array([], np.int32)},
)  # fmt: skip


def test_reports_of_several_engines_are_summed_up():
    total = summed([ONE, OTHER])
    assert (total.steps, total.sequence_steps, total.index_bytes) == (4, 9, 110)
    assert (total.drafted_at, total.accepted_at) == ([9, 7, 5], [3, 1])
    assert total.by_source == {"earlier": 3, "own": 3}
    # A mean is that of the engine whose steps count more in it, where both have one.
    assert total.batches == {1: BatchSteps(1.0, 4.0, 3.0, 9, 6.0, 7, 8, 9, 10), 3: BatchSteps(verified=2)}
    assert list(total.unfinished) == ["a", "b"]
    assert summed([OTHER, ONE]).batches[1] == total.batches[1]


def test_batches_belong_to_classes_of_powers_of_two():
    report = DraftReport()
    for running in (1, 2, 3, 4, 7, 8):
        report.batch(running).drafted += 1
    assert {size: steps.drafted for size, steps in report.batches.items()} == {1: 1, 3: 2, 7: 2, 15: 1}
