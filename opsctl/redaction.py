"""What leaves this program: secrets blanked, and nothing in it that a terminal would obey.

Every sink (terminal, events, journal, reports, messages) uses this one place. It errs on the side of blanking.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

BLANK = "[redacted]"

_SECRET_NAME = re.compile(
    r"api[-_]?keys?|access[-_]?key|private[-_]?key|secret|passw|passphrase|credential|authorization"
    r"|(?:^|[-_.])token(?:$|[-_])|(?:^|[-_.])(?:pwd|pat)$|[a-z]token$",
    re.IGNORECASE,
)
# A *file* that holds a secret may be named, and so may a number that is called a token.
_HARMLESS_NAME = re.compile(r"[-_]?(?:file|path|dir|count|ids?|type|limit|len|length|name)s?$", re.IGNORECASE)
_MANY_VALUES = re.compile(r"--api[-_]?keys?", re.IGNORECASE)
_NO_SECRET = re.compile(r"(?:\d{1,9}|true|false|null|none|bearer|basic|token|digest)?(?:$|(?<=r) )", re.IGNORECASE)

_FLAG = re.compile(
    r"(?P<flag>--[A-Za-z][\w-]*)(?P<values>(?:(?:[\"']?(?:=|,?\s+)(?![\"']?-))(?:\[redacted\]|\\?\"[^\"\\]*\\?\"|'[^']*'|[^\s\"',\])}]+))+)"
)
_FLAG_VALUE = re.compile(r"([\"']?(?:=|,?\s+)[\"']?)(\[redacted\]|(?<=[\"'])[^\"']*|[^\s\"',\])}]+)")
_NAMED = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*)(?P<sep>\\?[\"']?\s*[=:]\s*)"
    r"(?P<value>\\\"[^\"\\]*\\\"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?!\[|\{|\\)[^\s,;&}\])\"']+)"
)
_IN_TEXT = (
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{6,}"),
    re.compile(r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|digest)\s+)[^\s\"']+"),
    re.compile(r"()\b(?:sk|hf|ghp|gho|ghs|github_pat|glpat|nvapi|xox[abp])[-_][A-Za-z0-9_-]{16,}"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s@]+(?=@)"),
)

# Operating system commands and other strings up to their end, CSI, two-letter escapes; then whatever controls are left
# (C0 but newline and tab, DEL, C1), and what reorders the letters of a line.
_SEQUENCES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def is_secret_name(name: str) -> bool:
    """Whether a variable, key or flag of this name holds a secret (a *file* that holds one may be named)."""
    return _SECRET_NAME.search(name) is not None and _HARMLESS_NAME.search(name) is None


def redact(text: str) -> str:
    """Return the text with everything that looks like a secret blanked. A JSON document stays one."""
    if text.lstrip()[:1] in {"{", "["}:
        try:
            document = json.loads(text)
        except ValueError:
            pass
        else:
            end = "\n" if text.endswith("\n") else ""
            return json.dumps(redact_value(document), indent=2 if "\n" in text.strip() else None) + end
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda match: match.group(1) + BLANK, text)
    return _blank_named(_FLAG.sub(_blank_flag, text))


def _blank_flag(match: re.Match[str]) -> str:
    flag, values = match["flag"], match["values"]
    if not is_secret_name(flag):
        return match[0]
    return flag + _FLAG_VALUE.sub(lambda one: one[1] + BLANK, values, count=0 if _MANY_VALUES.fullmatch(flag) else 1)


def _blank_named(text: str) -> str:
    """Blank the values of ``name=value`` and ``"name": "value"`` whose name is a secret's."""
    pieces: list[str] = []
    at = 0
    while match := _NAMED.search(text, at):
        value = match["value"]
        secret = is_secret_name(match["name"]) and not _NO_SECRET.match(value.strip("\\\"'"))
        quote = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark)), "")
        pieces += [text[at : match.end("sep")], f"{quote}{BLANK}{quote}" if secret else ""]
        # What follows a name that is harmless may itself be one that is not: `seen: PGPASSWORD=…`.
        at = match.end() if secret else match.end("sep")
    return "".join([*pieces, text[at:]])


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the values of secret flags blanked; a flag that takes several keys has all blanked."""
    out: list[str] = []
    blanking = many = False
    for argument in argv:
        if argument.startswith("--"):
            blanking = is_secret_name(argument) and "=" not in argument
            many = _MANY_VALUES.fullmatch(argument.partition("=")[0]) is not None
            out.append(redact(argument))
            blanking = blanking or many
        elif blanking and not argument.startswith("-"):
            out.append(BLANK)
            blanking = many
        else:
            blanking = False
            out.append(redact(argument))
    return tuple(out)


def redact_value(value: Any) -> Any:
    """Return plain data (dicts, lists, strings) with secrets blanked, by name and by looks."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            key: BLANK if isinstance(item, str | list | tuple | Mapping) and item and is_secret_name(str(key))
            else redact_value(item)
            for key, item in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return list(redact_argv(value))
        return [redact_value(item) for item in value]
    return value


def printable(text: str) -> str:
    """Return the text without anything that a terminal obeys: escape sequences, controls but newline and tab."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text)) if not text.isprintable() else text
