"""Unit files as systemd reads them: sections and assignments in order, fragment first, then drop-ins.

systemd merges by reading one file after the other, so joining the assignments in that order is the merge;
an empty assignment resets a list there as here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

EXEC_KEYS = frozenset(
    {
        "ExecCondition",
        "ExecStartPre",
        "ExecStart",
        "ExecStartPost",
        "ExecReload",
        "ExecStop",
        "ExecStopPost",
    }
)


@dataclass(frozen=True)
class Assignment:
    """One ``Key=value`` of a section; continuation lines are joined, the value is stripped."""

    section: str
    key: str
    value: str


_SECTION = re.compile(r"\[(?P<name>[^\]]+)\]\s*")


def logical_lines(text: str) -> list[str]:
    """Join continuation lines with a space; comments and empty lines go, also between continued lines."""
    lines: list[str] = []
    held = ""
    for raw in text.replace("\r\n", "\n").split("\n"):
        line = raw.lstrip(" \t")
        if line.startswith(("#", ";")):
            continue
        trailing = len(raw) - len(raw.rstrip("\\"))
        if trailing % 2:
            held += raw[:-1] + " "
            continue
        line = (held + raw).strip()
        held = ""
        if line:
            lines.append(line)
    if held.strip():
        lines.append(held.strip())
    return lines


def parse_unit(text: str) -> list[Assignment]:
    """Return a file's assignments, in order. Lines that systemd would ignore are left out."""
    section = ""
    found: list[Assignment] = []
    for line in logical_lines(text):
        header = _SECTION.fullmatch(line)
        if header:
            section = header["name"]
            continue
        key, equals, value = line.partition("=")
        if section and equals and key.strip():
            found.append(Assignment(section, key.strip(), value.strip()))
    return found


def merge(texts: Iterable[str]) -> list[Assignment]:
    """Return the assignments of a fragment and its drop-ins, in the order in which systemd applies them."""
    return [assignment for text in texts for assignment in parse_unit(text)]


def values_of(assignments: Sequence[Assignment], section: str, key: str) -> list[str]:
    """Return the values of a list setting that stand after all resets."""
    values: list[str] = []
    for assignment in assignments:
        if (assignment.section, assignment.key) == (section, key):
            values = [*values, assignment.value] if assignment.value else []
    return values


def last_value(assignments: Sequence[Assignment], section: str, key: str) -> str | None:
    """Return the value of a setting that holds one, or None where it is not set."""
    values = [entry.value for entry in assignments if (entry.section, entry.key) == (section, key)]
    return values[-1] if values else None


def without(assignments: Sequence[Assignment], unwanted: Callable[[Assignment], bool]) -> list[Assignment]:
    """Return the assignments that are wanted."""
    return [assignment for assignment in assignments if not unwanted(assignment)]


def format_unit(assignments: Sequence[Assignment], *, head: str = "") -> str:
    """Return a unit file: one block a section, in order of first use, assignments in their order."""
    sections = list(dict.fromkeys(assignment.section for assignment in assignments))
    blocks = [
        "\n".join(
            [f"[{section}]", *(f"{entry.key}={entry.value}" for entry in assignments if entry.section == section)]
        )
        for section in sections
    ]
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return f"{comment}\n" * bool(comment) + "\n\n".join(blocks) + "\n"


def specifiers(unit: str, *, fragment: str = "") -> dict[str, str]:
    r"""Return what the specifiers that hang on a unit's name stand for.

    >>> specifiers("vllm@kimi\\x2dk2.service")["I"]
    'kimi-k2'
    """
    name, _, _ = unit.rpartition(".")
    prefix, at, instance = name.partition("@")
    last = prefix.rpartition("-")[2]
    path = instance if at and instance else prefix
    values = {
        "n": unit,
        "N": name,
        "p": prefix,
        "P": unescape(prefix),
        "i": instance,
        "I": unescape(instance),
        "j": last,
        "J": unescape(last),
        "f": "/" + unescape(path).lstrip("/"),
    }
    if fragment:
        values["y"], values["Y"] = fragment, fragment.rpartition("/")[0]
    return values


def unescape(name: str) -> str:
    r"""Undo systemd's escaping of names: ``-`` is ``/``, ``\xNN`` a byte."""
    data = re.sub(r"\\x([0-9a-fA-F]{2})", lambda match: f"\0{match[1]}\0", name).replace("-", "/")
    return re.sub("\0([0-9a-fA-F]{2})\0", lambda match: chr(int(match[1], 16)), data)
