"""The base of all that a user writes: inventories, playbooks, and the options of stages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


def kebab(name: str) -> str:
    """Return the YAML spelling of a field."""
    return name.rstrip("_").replace("_", "-")


class Model(BaseModel):
    """Keys are kebab-case in YAML; unknown ones are refused.

    Field descriptions (docstrings) end up in the JSON Schema and in the reference, so they are written for users.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=kebab,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )
