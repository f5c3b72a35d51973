"""Secrets never leave: the one place that blanks them, used by every sink (terminal, events, journal, reports)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BLANK = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?i)(api[-_]?key|token(?!s)|secret|passw|credential|authorization)(?!s?[-_]?(file|path|count|id))"
)
_SECRET_FLAG = re.compile(r"(?i)--(api[-_]key|hf[-_]token|token|password|ssl[-_]keyfile[-_]password)")
_IN_TEXT = (
    re.compile(r"(?i)(--(?:api[-_]key|hf[-_]token|token|password)[= ]+)(?:'[^']*'|\"[^\"]*\"|\S+)"),
    re.compile(r"(?i)((?:authorization:\s*)?bearer\s+)[\w.~+/=-]{6,}"),
    re.compile(r"(?i)\b((?:[A-Z0-9]+_)*(?:API_?KEY|TOKEN|SECRET|PASSWORD)=)(?:'[^']*'|\"[^\"]*\"|\S+)"),
    re.compile(r"()\b(?:sk|hf|ghp|xox[bp])[-_][A-Za-z0-9_-]{16,}"),
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)"),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret (a *file* that holds one may be named)."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """Return the text with everything that looks like a secret blanked."""
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda match: match.group(1) + BLANK, text)
    return text


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the values of secret flags blanked."""
    out: list[str] = []
    secret_next = False
    for argument in argv:
        if secret_next and not argument.startswith("-"):
            out.append(BLANK)
            secret_next = False
            continue
        secret_next = _SECRET_FLAG.fullmatch(argument) is not None
        out.append(redact(argument))
    return tuple(out)


def redact_value(value: Any) -> Any:
    """Return plain data (dicts, lists, strings) with secrets blanked, by name and by looks."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            key: BLANK if isinstance(item, str) and item and is_secret_name(str(key)) else redact_value(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return list(redact_argv(value))
        return [redact_value(item) for item in value]
    return value
