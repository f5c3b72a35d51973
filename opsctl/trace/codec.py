"""Frozen dataclasses to JSON and back, strictly: a wrong type, an unknown or a missing field is an error.

The standard library only. Classes must spell ``Optional[X]``: ``X | None`` cannot be evaluated on Python 3.9.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Dict, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from opsctl.errors import TraceError

Document = TypeVar("Document")
_hints = lru_cache(maxsize=None)(get_type_hints)


def to_json(value: Any) -> Any:
    """Return dataclasses as dictionaries and tuples as lists, all the way down."""
    if is_dataclass(value):
        return {item.name: to_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json(kind: Type[Document], data: Any) -> Document:
    """Return the dataclass ``kind`` that ``data`` spells. Raises TraceError that names the place where it does not.

    Fields with a default may be absent: a document of an older opsctl stays readable. A class with a field ``format``
    refuses documents of another format before anything else.
    """
    own = next((item.default for item in fields(kind) if item.name == "format"), None)  # type: ignore[arg-type]
    seen = data.get("format") if isinstance(data, dict) else None
    if own is not None and isinstance(data, dict) and seen != own:
        raise TraceError(
            f"not an analysis of format {own}", seen=f"format {seen}", hint="analyse the traces again with this opsctl"
        )
    document: Document = _read(kind, data, "")
    return document


def _read(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin is Union:
        return None if value is None else _read(get_args(kind)[0], value, where)
    if origin is tuple:
        items = _of(list, value, where)
        return tuple(_read(get_args(kind)[0], item, f"{where}[{place}]") for place, item in enumerate(items))
    if origin is dict:
        return {key: _read(get_args(kind)[1], item, f"{where}.{key}") for key, item in _of(dict, value, where).items()}
    if is_dataclass(kind):
        return _fields(kind, _of(dict, value, where), where)
    if kind is float:
        number = float(value) if type(value) is int else _of(float, value, where)
        return number if isfinite(number) else _refuse(where, "a finite number", value)
    return _of(kind, value, where)


def _fields(kind: Any, given: Dict[str, Any], where: str) -> Any:
    hints, known = _hints(kind), {item.name: item for item in fields(kind)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        _refuse(where, f"only the fields of {kind.__name__}", ", ".join(unknown))
    absent = [
        name
        for name, item in known.items()
        if name not in given and item.default is MISSING and item.default_factory is MISSING
    ]
    if absent:
        _refuse(where, f"the fields {', '.join(absent)}", ", ".join(given))
    return kind(**{name: _read(hints[name], value, f"{where}.{name}") for name, value in given.items()})


def _of(kind: Any, value: Any, where: str) -> Any:
    return value if type(value) is kind else _refuse(where, f"a {kind.__name__}", value)


def _refuse(where: str, wanted: str, value: Any) -> Any:
    raise TraceError(f"not an analysis: {where.lstrip('.') or 'the document'}", wanted=wanted, seen=repr(value)[:80])
