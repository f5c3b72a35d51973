from __future__ import annotations

import re

import pytest

from opsctl.playbook.reference import inventory_reference, playbook_reference
from opsctl.playbook.schema import json_schema


@pytest.mark.parametrize(
    ("text", "kind"),
    [(inventory_reference(), "inventory"), (playbook_reference(), "playbook")],
    ids=["inventory", "playbook"],
)
def test_every_key_is_in_the_reference(text: str, kind: str) -> None:
    schema = json_schema("inventory" if kind == "inventory" else "playbook")
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))
    keys = {
        key
        for name, model in {"": schema, **schema["$defs"]}.items()
        if name != "Step"
        for key in model.get("properties", {})
    }
    assert keys - rows == set()


def test_values_are_written_as_a_person_writes_them() -> None:
    text = inventory_reference()
    assert "| `limit` | duration | `45m` |" in text
    assert "| `become` | true or false | `false` |" in text
    assert "| `hosts` | mapping of names to [Host](#host) | **required** |" in text
    assert "| `sizes` | list of size |" in playbook_reference()


@pytest.mark.parametrize("text", [inventory_reference(), playbook_reference()], ids=["inventory", "playbook"])
def test_links_lead_to_sections(text: str) -> None:
    sections = {re.sub(r"\s+", "-", title.lower()) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= sections
