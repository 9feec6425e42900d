"""The documents as strict, frozen models: one module a document; base and limits are what all of them share."""

from ...rounds.round_spec import MODES as MODES  # here for commands, which start without pydantic
