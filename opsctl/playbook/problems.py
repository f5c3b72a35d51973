"""What is wrong in a document, gathered: pydantic's errors and our own, each at its place in the file."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from opsctl.errors import Problem
from opsctl.nearest import nearest, suggestion
from opsctl.playbook.source import Document, Key, kind_of

ModelT = TypeVar("ModelT", bound=BaseModel)

WRITTEN = {"written": True}
"""Validation context: the value comes from a file, so a duration without a unit is refused."""

_SECRET = re.compile(
    r"(?:^|[^a-z])(?:api)?(?:key|token|secret|password|passwd|credentials?)(?:[^a-z]|$)", re.IGNORECASE
)
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


@dataclass
class Findings:
    """The problems of one document as they are found."""

    document: Document
    problems: list[Problem] = field(default_factory=list)
    spoiled: set[Key] = field(default_factory=set)
    """Values that have a problem already: what follows from it is not said again."""
    origins: dict[Key, str] = field(default_factory=dict)
    """Where the value of an expression came from, for messages."""

    def add(self, key: Key, message: str, *, on_key: bool = False) -> None:
        """Note a problem with a value, or with a key; a value that has one already gets no second."""
        if self.is_spoiled(key):
            return
        if not on_key:
            self.spoiled.add(key)
        self.problems.append(self.document.problem(key, message + self._origin(key), on_key=on_key))

    def is_spoiled(self, key: Key) -> bool:
        """Whether the value, or one around it, has a problem already."""
        return any(key[:length] in self.spoiled for length in range(1, len(key) + 1))

    def validated(self, model: type[ModelT], data: object, at: Key = ()) -> ModelT | None:
        """Return the model made of plain values, or None with every problem noted."""
        try:
            # Through JSON, strictly: lists become tuples and words enums, but "5" and true are no numbers.
            return model.model_validate_json(
                json.dumps(data), strict=True, context=WRITTEN, by_alias=True, by_name=False
            )
        except ValidationError as error:
            for key, message, on_key in _explained(error, model, at):
                self.add(key, message, on_key=on_key)
            return None

    def _origin(self, key: Key) -> str:
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return f" ({self.origins[key[:length]]})"
        return ""


def _explained(error: ValidationError, model: type[BaseModel], at: Key) -> Iterable[tuple[Key, str, bool]]:
    """Yield (key, message, whether it stands on the key) for each error; the arms of a union are one."""
    unions: dict[Key, list[str]] = {}
    found: dict[Key, object] = {}
    errors = error.errors(include_url=False)
    missing = {tuple(one["loc"]) for one in errors if one["type"] == "missing"}
    meant = {
        (*one["loc"][:-1], near)
        for one in errors
        if one["type"] == "extra_forbidden"
        and (near := nearest(str(one["loc"][-1]), (str(key[-1]) for key in missing if key[:-1] == one["loc"][:-1])))
    }
    for one in errors:
        location = tuple(one["loc"])
        kind = one["type"]
        given = one.get("input")
        shape = _annotation_at(model, location)
        if shape is None and location and isinstance(location[-1], str) and kind in _WANTED:
            # One arm of a union: pydantic puts the arm's name last.
            key = (*at, *location[:-1])
            unions.setdefault(key, []).append(_WANTED[kind])
            found[key] = given
        elif kind == "extra_forbidden":
            name = str(location[-1])
            owner = _annotation_at(model, location[:-1])
            yield (*at, *location), f"unknown key `{name}`{suggestion(name, keys_of(owner))}", True
        elif kind == "missing":
            if location in meant:
                continue  # said already: the unknown key beside it is this one, misspelt
            wanted = f"the key `{location[-1]}`" if isinstance(location[-1], str) else _entries(location[-1] + 1)
            yield (*at, *location[:-1]), f"wanted {wanted}, found none", True
        else:
            yield (*at, *location), _message(one["type"], one.get("ctx") or {}, one["msg"], given, location), False
    for key, wants in unions.items():
        yield key, f"wanted {' or '.join(dict.fromkeys(wants))}, found {_shown(found[key], key)}", False


def _message(kind: str, context: Mapping[str, Any], said: str, given: object, location: Key) -> str:
    shown = _shown(given, location)
    if kind in _WANTED:
        quote = (
            f'; write "{given}" with quotes'
            if kind == "string_type" and _is_number(given) and shown == str(given)
            else ""
        )
        return f"wanted {_WANTED[kind]}, found {shown}{quote}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"wanted {words} {context.get(name)}, found {shown}"
    if kind == "too_short":
        return f"wanted at least {_entries(context.get('min_length'))}, found {context.get('actual_length') or 'none'}"
    if kind == "too_long":
        return f"wanted at most {_entries(context.get('max_length'))}, found {context.get('actual_length')}"
    if kind in {"literal_error", "enum"}:
        names = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"wanted one of {', '.join(names)}, found {shown}{_near(given, names)}"
    if kind == "value_error":
        return str(context.get("error", said))
    return f"{said[:1].lower()}{said[1:]}, found {shown}"


def _entries(count: object) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _near(given: object, names: list[str]) -> str:
    near = suggestion(given, names) if isinstance(given, str) else ""
    return near if near.startswith("; nearest") else ""


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _shown(given: object, location: Key) -> str:
    """Return a value as a message may show it: what lies under a name like a secret's is not."""
    if any(isinstance(part, str) and _SECRET.search(part) for part in location) and not isinstance(given, dict | list):
        return "a value (not shown)"
    return kind_of(given)


def keys_of(annotation: object) -> tuple[str, ...]:
    """Return the keys, as written in YAML, of the model in a type; none where it holds no model."""
    model = _model_in(annotation)
    if model is None:
        return ()
    return tuple(info.alias or name for name, info in model.model_fields.items())


def _annotation_at(model: object, location: Key) -> object:
    """Return the type of the value at a place inside a model; None where the model says nothing of it."""
    current: object = model
    for part in location:
        owner = _model_in(current)
        if owner is not None and isinstance(part, str):
            fields = {info.alias or name: info.annotation for name, info in owner.model_fields.items()}
            current = fields.get(part)
        else:
            current = _item_of(current, part)
        if current is None:
            return None
    return current


def _item_of(annotation: object, part: str | int) -> object:
    for arm in _arms(annotation):
        origin, arguments = get_origin(arm), get_args(arm)
        if origin is tuple and isinstance(part, int):
            return arguments[0] if arguments[-1] is Ellipsis else arguments[min(part, len(arguments) - 1)]
        if origin is dict and isinstance(part, str):
            return arguments[1]
    return None


def _model_in(annotation: object) -> type[BaseModel] | None:
    for arm in _arms(annotation):
        if isinstance(arm, type) and issubclass(arm, BaseModel):
            return arm
    return None


def _arms(annotation: object) -> tuple[object, ...]:
    if get_origin(annotation) is Annotated:
        return _arms(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(arm for part in get_args(annotation) for arm in _arms(part))
    return (annotation,)
