"""JSON Schema of playbooks and inventories, made from the models, for editors (yaml-language-server and others)."""

from __future__ import annotations

from typing import Any, Literal

from opsctl.options import Model
from opsctl.playbook.models import Inventory
from opsctl.playbook.steps import Playbook
from opsctl.quantities import write_duration
from opsctl.stages import STAGES

Kind = Literal["playbook", "inventory"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{model}"
_EXPRESSION: dict[str, Any] = {
    "type": "string",
    "pattern": r"\{\{.*\}\}",
    "description": "An expression such as {{ vars.x }}, in quotes.",
}
_DURATION_PATTERN = r"^(?=\s*\d)\s*(\d+(\.\d+)?d)?(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?\s*$"


def json_schema(kind: Kind) -> dict[str, Any]:
    """Return the schema of one kind of file: keys as they are written, described, unknown ones refused."""
    if kind == "inventory":
        schema = _schema_of(Inventory)
    else:
        schema = _schema_of(Playbook)
        definitions = schema["$defs"]
        for stage in STAGES.values():
            own = _schema_of(stage.options)
            definitions.update(own.pop("$defs", {}))
            definitions[stage.options.__name__] = own
        definitions["Step"] = _step_schema()
        definitions["expression"] = _EXPRESSION
        for name in ("vars", "name", "hosts", "description"):
            # vars hold anything; the others may not depend on vars.
            schema["properties"][name]["x-literal"] = True
        _allow_expressions(schema)
    _tidy(schema)
    title = f"opsctl {kind}"
    return {"$schema": _DIALECT, **schema, "title": title}


def _schema_of(model: type[Model]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True, ref_template=_REF)


def _step_schema() -> dict[str, Any]:
    """Return the shape of a step as it is written: one stage's name as key, its options as value."""
    name = {"type": "string", "description": "How reports call the step; default: the stage's name."}
    return {
        "title": "Step",
        "description": "One measuring step: a stage and its options.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": name,
            **{
                name: {
                    "anyOf": [{"$ref": _REF.format(model=stage.options.__name__)}, {"type": "null"}],
                    "description": stage.options.__doc__,
                }
                for name, stage in STAGES.items()
            },
        },
        "oneOf": [{"required": [stage]} for stage in STAGES],
    }


def _allow_expressions(node: Any) -> None:
    """Let every value that is not a mapping of keys be an expression too, in place."""
    if isinstance(node, list):
        for item in node:
            _allow_expressions(item)
        return
    if not isinstance(node, dict):
        return
    for name, value in list(node.items()):
        if name == "properties":
            node[name] = {key: _with_expression(item) for key, item in value.items()}
        elif name in {"items", "additionalProperties"} and isinstance(value, dict):
            node[name] = _with_expression(value)
        elif name != "expression":
            _allow_expressions(value)


def _with_expression(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.pop("x-literal", False) or schema == {}:
        return schema
    _allow_expressions(schema)
    plain = schema.get("type") == "string" and not {"examples", "enum", "const"} & schema.keys()
    if plain or "$ref" in schema or any("$ref" in arm for arm in schema.get("anyOf", ())):
        return schema
    about: dict[str, Any] = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    return {**about, "anyOf": [schema, {"$ref": _REF.format(model="expression")}]}


def _tidy(node: Any) -> None:
    """Write durations and sizes as people do, and drop what says nothing to an editor, in place."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
        return
    if not isinstance(node, dict):
        return
    arms = [node, *(arm for arm in node.get("anyOf", ()) if isinstance(arm, dict))]
    for arm in arms:
        if "90s" in arm.get("examples", ()):
            arm["pattern"] = _DURATION_PATTERN
            if isinstance(node.get("default"), int | float):
                node["default"] = write_duration(node["default"])
        if "512MiB" in arm.get("examples", ()):
            arm["type"] = ["string", "integer"]
    if {"examples"} & node.keys():
        node.pop("minimum", None)
        node.pop("ge", None)
    if "$ref" in node:
        node.pop("default", None)
    for name, value in node.items():
        if name == "properties":
            for item in value.values():
                item.pop("title", None)
        _tidy(value)
