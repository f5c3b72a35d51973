"""The reference of playbooks and inventories as Markdown, from the models themselves: every key, none forgotten."""

from __future__ import annotations

import types
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from opsctl.options import Model
from opsctl.playbook.models import Inventory
from opsctl.playbook.steps import Playbook, Step
from opsctl.quantities import write_duration
from opsctl.stages import STAGES

_SCALARS: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "anything",
    type(None): "nothing",
}


def inventory_reference() -> str:
    """Return every key of an inventory."""
    intro = (
        "Every key of `inventory.yml`, from the models that read it. Durations are written `90s`, `45m`, "
        "`1h30m`; a number without a unit is refused. Unknown keys are errors.\n"
    )
    return _page("Inventory", intro, Inventory)


def playbook_reference() -> str:
    """Return every key of a playbook, each stage's options among them."""
    intro = (
        "Every key of a playbook, from the models that read it. Any value but `name`, `description`, `hosts` "
        'and the names of keys may be an expression: `"{{ vars.x }}"`, in quotes; see [Expressions](#expressions).\n'
    )
    parts = [_page("Playbook", intro, Playbook, skip=(Step,)), _steps()]
    for name, stage in STAGES.items():
        options = stage.options
        parts.append(f"## {name}\n\n{_about(options)}\n\n{_table(options)}\n")
        parts += [_section(model) for model in _models_in(options) if model is not options]
    parts.append(_EXPRESSIONS)
    return "\n".join(parts)


_EXPRESSIONS = """## Expressions

`vars` in the playbook are defaults. They are overridden by `vars` of the inventory, these by `vars` of the host,
and these by `--var NAME=VALUE` (the value is YAML). A var may use other vars. What is not defined is an error.

A value that is one whole expression keeps its type (`"{{ vars.concurrency }}"` stays a list); within text it is
put in as text. Allowed are arithmetic, comparisons, `a if b else c`, lists, `range(…)` and the filters `abs`,
`bool`, `first`, `float`, `int`, `join`, `last`, `length`, `list`, `lower`, `max`, `min`, `round`, `sort`,
`string`, `sum`, `unique`, `upper`. Nothing else is: no statements, no calls, no results above 64 KiB.
"""


def _steps() -> str:
    stages = ", ".join(f"[`{stage}`](#{stage})" for stage in STAGES)
    return (
        "## Steps\n\nA step is one stage's name with its options, and perhaps a `name` that reports call it by:\n\n"
        "```yaml\nsteps:\n  - gemm: {tokens: [1, 8]}\n  - name: one request alone\n"
        "    serving-benchmark: {concurrency: [1]}\n```\n\n"
        f"Stages: {stages}.\n"
    )


def _page(title: str, intro: str, model: type[Model], skip: tuple[type[Model], ...] = ()) -> str:
    parts = [f"# {title}\n", intro, _table(model), ""]
    parts += [_section(one) for one in _models_in(model) if one is not model and one not in skip]
    return "\n".join(parts)


def _section(model: type[Model]) -> str:
    return f"## {_title(model)}\n\n{_about(model)}\n\n{_table(model)}\n"


def _title(model: type[Model]) -> str:
    return model.__name__.removesuffix("Entry")


def _about(model: type[Model]) -> str:
    return " ".join((model.__doc__ or "").split())


def _table(model: type[Model]) -> str:
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        key = info.alias or name
        cells = (
            f"`{key}`",
            _type_in_words(info.annotation, info),
            _default(info),
            " ".join((info.description or "").split()),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**required**"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or value in ((), {}, "") or isinstance(value, Model):
        return ""
    if _is_duration(info):
        return f"`{write_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(item) for item in value)}]`"
    return f"`{value}`"


def _is_duration(info: object) -> bool:
    return "90s" in str(getattr(info, "metadata", "")) or "90s" in str(getattr(info, "json_schema_extra", ""))


def _type_in_words(annotation: object, info: object = None) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_in_words(arguments[0], arguments[1:])
    if info is not None and annotation in {int, float} and _marks(info) is not None:
        return str(_marks(info))
    if origin in {Union, types.UnionType}:
        return " or ".join(_type_in_words(arm, info) for arm in arguments if arm is not type(None))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_type_in_words(arguments[0])}"
        return f"{len(arguments)} × {_type_in_words(arguments[0])}"
    if origin is dict:
        return f"mapping of names to {_type_in_words(arguments[1])}"
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return "[steps](#steps)" if annotation is Step else f"[{_title(annotation)}](#{_title(annotation).lower()})"
    return _SCALARS.get(annotation, str(annotation)) + _bounds(info)


def _marks(info: object) -> str | None:
    """Return duration or size where the metadata of a field, or of an annotated item, says so."""
    text = str(getattr(info, "metadata", "")) + str(getattr(info, "json_schema_extra", "")) + str(info)
    return "duration" if "90s" in text else "size" if "512MiB" in text else None


def _bounds(info: object) -> str:
    metadata = getattr(info, "metadata", ())
    words = [
        f"at least {mark.ge}" if isinstance(mark, Ge) else f"at most {mark.le}"
        for mark in metadata
        if isinstance(mark, Ge | Le)
    ]
    words += [f"at least {mark.min_length}" for mark in metadata if isinstance(mark, MinLen)]
    return f", {', '.join(words)}" if words else ""


def _models_in(model: type[Model]) -> Iterator[type[Model]]:
    """Yield a model and every model in its fields, once each, in the order of the keys."""
    seen: dict[type[Model], None] = {}

    def walk(annotation: object) -> None:
        if isinstance(annotation, type) and issubclass(annotation, Model):
            if annotation in seen:
                return
            seen[annotation] = None
            for info in annotation.model_fields.values():
                walk(info.annotation)
        for part in get_args(annotation):
            walk(part)

    walk(model)
    return iter(seen)
