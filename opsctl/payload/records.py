"""What crosses between controller and host, as dataclasses that both sides share: a stage's spec, and its records.

A spec is a ``Record`` in the stage's payload module (``Spec``); the controller writes it as JSON, the host reads it
back. Results are JSON Lines of the kinds below, ``{"record": KIND, …}``. Standard library of Python 3.9: no pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, Union

R = TypeVar("R", bound="Record")


def many(of: type[Record]) -> Any:
    """Return a dataclass field that holds a tuple of records, empty by default."""
    return field(default=(), metadata={"of": of})


@dataclass(frozen=True)
class Record:
    """A dataclass that goes to JSON and back. A field holds JSON values, or records (``many``, metadata ``of``)."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[R], document: Mapping[str, Any]) -> R:  # noqa: PYI019 - typing.Self came with Python 3.11
        """Return the record. Raises ValueError where a field is missing or unknown: the two sides differ."""
        known = {each.name: each for each in fields(cls)}
        unknown = sorted(set(document) - set(known))
        if unknown:
            msg = f"{cls.__name__} has no {', '.join(unknown)}"
            raise ValueError(msg)
        try:
            return cls(**{name: _read(value, known[name].metadata.get("of")) for name, value in document.items()})
        except TypeError as error:
            msg = f"{cls.__name__}: {error}"
            raise ValueError(msg) from error


def _read(value: Any, of: type[Record] | None) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_read(each, of) for each in value)
    return of.from_dict(value) if of is not None and value is not None else value


@dataclass(frozen=True)
class Spec(Record):
    """What a stage measures: the base of every stage's own ``Spec``."""


@dataclass(frozen=True)
class Figure(Record):
    """A number with all that is needed to believe it; the fields are those of ``opsctl.results.Figure``."""

    name: str
    value: float
    unit: str
    samples: int = 1
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    formula: str = ""
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class CellRecord(Record):
    """What became of a cell. The last record of a cell counts."""

    KIND: ClassVar[str] = "cell"
    id: str
    state: str
    reason: str = ""
    figures: tuple[Figure, ...] = many(Figure)
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentRecord(Record):
    """The machine; later records of this kind add to earlier ones, key by key."""

    KIND: ClassVar[str] = "environment"
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvidenceRecord(Record):
    """An observation that a verdict rests on. ``time`` is UTC, ISO 8601."""

    KIND: ClassVar[str] = "evidence"
    asked: str
    observed: str
    time: str = ""


@dataclass(frozen=True)
class ProgressRecord(Record):
    """How far it is."""

    KIND: ClassVar[str] = "progress"
    text: str
    done: float = 0.0
    of: float = 0.0


@dataclass(frozen=True)
class ArtifactRecord(Record):
    """A file of the step's folder. ``size`` is in bytes."""

    KIND: ClassVar[str] = "artifact"
    path: str
    size: int
    sha256: str
    kind: str = ""


@dataclass(frozen=True)
class EndRecord(Record):
    """The last line: without it the payload died."""

    KIND: ClassVar[str] = "end"
    state: str
    reason: str = ""
    time: str = ""


AnyRecord = Union[CellRecord, EnvironmentRecord, EvidenceRecord, ProgressRecord, ArtifactRecord, EndRecord]
KINDS: dict[str, type[AnyRecord]] = {
    kind.KIND: kind
    for kind in (CellRecord, EnvironmentRecord, EvidenceRecord, ProgressRecord, ArtifactRecord, EndRecord)
}


def read_record(document: Mapping[str, Any]) -> AnyRecord:
    """Return one line of the results. Raises ValueError for a kind or field that is unknown, or a field missing."""
    kind = KINDS.get(str(document.get("record")))
    if kind is None:
        msg = f"no such record: {document.get('record')!r}"
        raise ValueError(msg)
    return kind.from_dict({name: value for name, value in document.items() if name != "record"})
