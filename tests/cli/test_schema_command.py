"""`rlplan schema`: schemas that say what the models say."""

import json

import pytest

from rlplan.cli.schema import KINDS, model_of
from rlplan.plans.yaml.yaml_io import schema_of

from .command_line import printed, refused, rlplan


@pytest.mark.parametrize("kind", KINDS)
def test_schema_prints_what_the_model_says(kind):
    text = printed("schema", kind)
    assert text == schema_of(model_of(kind)) and json.loads(text)["additionalProperties"] is False


def test_schemas_are_written_into_a_folder(tmp_path):
    names = [tmp_path / f"{kind}.schema.json" for kind in KINDS]
    assert printed("schema", "--out", tmp_path).splitlines() == [str(name) for name in names]
    assert sorted(tmp_path.iterdir()) == sorted(names)
    schema = json.loads(printed("schema", "lengths"))
    assert schema["title"] == "LengthLine" and "tokens" in schema["required"]
    names[-1].write_text("mine")
    names[0].write_text("{}")
    refused(rlplan("schema", "--out", tmp_path), f"{names[0].name}: exists and is no schema")
    assert names[0].read_text() == "{}"
    printed("schema", "--out", tmp_path, "--force")
