"""What the name of an algorithm stands for, and what a job may set beside it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rlplan.plans.schema.job import Job
from rlplan.plans.schema.sections.algorithm import Algorithm
from rlplan.plans.yaml.yaml_io import dump, loads

from ...conftest import JOB


def algorithm(**keys: Any) -> Algorithm:
    return Algorithm.model_validate({"learning_rate": 1e-6, **keys})


@pytest.mark.parametrize(
    ("name", "aggregation"),
    [
        ("grpo", "seq-mean-token-mean"),
        ("dr_grpo", "seq-mean-token-sum-norm"),
        ("rloo", "seq-mean-token-sum-norm"),
    ],
)
def test_a_name_alone_sets_what_its_paper_sets(name: str, aggregation: str) -> None:
    found = algorithm(name=name)
    assert found.loss_aggregation == aggregation
    assert (found.clip_low, found.clip_high) == (0.2, 0.2)
    assert found.dynamic_sampling is found.mask_truncated is False
    assert found.importance_sampling is None
    assert found.overrides() == ()


def test_what_a_job_sets_otherwise_is_told_and_what_it_sets_alike_is_not() -> None:
    found = algorithm(name="dr_grpo", loss_aggregation="token-mean", clip_low=0.2, dynamic_sampling=True)
    assert found.loss_aggregation == "token-mean"
    assert found.overrides() == (
        "loss_aggregation is token-mean (dr_grpo: seq-mean-token-sum-norm)",
        "dynamic_sampling is true (dr_grpo: false)",
    )


def test_a_name_that_is_none_is_the_only_fault() -> None:
    for keys in ({}, {"name": "ppo"}, {"name": ["grpo"]}):
        with pytest.raises(ValidationError) as caught:
            algorithm(**keys)
        assert [error["loc"] for error in caught.value.errors()] == [("name",)]


def test_keys_that_a_job_leaves_to_its_algorithm_are_not_written_into_it() -> None:
    job = loads(JOB.replace("name: grpo", "name: rloo"), Job)
    assert "loss_aggregation" not in job.algorithm.model_fields_set
    assert loads(dump(job), Job) == job


@pytest.mark.parametrize("keys", [{"cap": 0.5}, {"beyond": "drop"}, {"threshold": 2.0}])
def test_importance_sampling_takes_a_cap_of_at_least_one_and_a_known_way(keys: dict[str, Any]) -> None:
    assert algorithm(name="grpo", importance_sampling={}).importance_sampling is not None
    with pytest.raises(ValidationError):
        algorithm(name="grpo", importance_sampling=keys)
