from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from opsctl.playbook.schema import json_schema
from opsctl.playbook.source import read_document
from opsctl.stages import STAGES

ROOT = Path(__file__).parents[2]


def valid(kind: Any, document: object) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema(kind)).is_valid(document))


def playbook(step: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "x", "hosts": "h", "phases": [{"name": "a", "serve": "nothing", "steps": [step]}], **more}


@pytest.mark.parametrize("kind", ["playbook", "inventory"])
def test_it_is_a_schema(kind: Any) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    json.dumps(schema)


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.name)
def test_the_playbooks_of_the_repository_fit(path: Path) -> None:
    assert valid("playbook", read_document(path).data)


def test_the_inventory_of_the_repository_fits() -> None:
    assert valid("inventory", read_document(ROOT / "inventory.yml").data)


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        (playbook({"gemm": {"tokens": [1, 2]}}), True),
        (playbook({"gemm": None}), True),
        (playbook({"gemm": {"tokens": "{{ vars.x }}"}}), True),
        (playbook({"gemm": {"tokens": ["{{ vars.x }}"]}}), True),
        (playbook({"gemm": {"tokens": "many"}}), False),
        (playbook({"gemm": {"tensor_parallel": 8}}), False),
        (playbook({"gemm": {"tensor-parallel": 8}, "profile": {}}), False),
        (playbook({"gem": {}}), False),
        (playbook({"gemm": {"limit": "45m"}}), True),
        (playbook({"gemm": {"limit": 45}}), False),
        (playbook({"gemm": {"limit": "45 minutes"}}), False),
        (playbook({"profile": {"with": "nsys"}}), True),
        (playbook({"profile": {"with_": "nsys"}}), False),
        (playbook({"gemm": {}}, vars={"a": [1, {"b": 2}]}), True),
        (playbook({"gemm": {}}, limits="1h"), False),
    ],
)
def test_it_knows_what_the_loader_knows(document: object, *, fits: bool) -> None:
    assert valid("playbook", document) is fits


def test_every_stage_and_every_default_is_there_as_it_is_written() -> None:
    schema = json_schema("playbook")
    assert set(STAGES) < schema["$defs"]["Step"]["properties"].keys()
    assert schema["properties"]["limit"]["default"] == "12h"
    assert schema["$defs"]["Lease"]["properties"]["ttl"]["default"] == "5m"


@pytest.mark.parametrize("kind", ["playbook", "inventory"])
def test_every_key_is_described(kind: Any) -> None:
    schema = json_schema(kind)
    models = {"the file": schema, **schema["$defs"]}
    bare = [
        f"{name}.{key}"
        for name, model in models.items()
        for key, value in model.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert bare == []
