"""A tiny model that the trainers of this room train."""

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    from .test_trainer_rank import write_model

    return write_model(tmp_path_factory.mktemp("model"))
