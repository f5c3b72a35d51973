"""The file that ``--config`` names: arguments of vLLM and SGLang that stand on no command line.

Both engines let the command line win over the file, so that an added or a replaced flag needs no copy. A flag
that is to go, and one that is replaced, leaves a copy of the file. Only the plain form that both document is read:
one ``key: value`` a line at the left margin, with its indented or listed values below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_KEY = re.compile(r"""(?P<quote>["']?)(?P<name>[A-Za-z][\w-]*)(?P=quote)\s*:(?:\s+(?P<value>.*))?$""")


def _blocks(text: str) -> list[tuple[str, str, list[str]]]:
    """Return (name, value on its own line, all of its lines); lines before the first key have the name ""."""
    blocks: list[tuple[str, str, list[str]]] = [("", "", [])]
    for line in text.splitlines(keepends=True):
        match = _KEY.match(line.rstrip("\r\n"))
        if match:
            value = re.sub(r"(?:^|\s+)#.*$", "", match["value"] or "").strip()
            blocks.append((match["name"].replace("_", "-"), value, []))
        blocks[-1][2].append(line)
    return blocks


def arguments_of(text: str) -> tuple[str, ...]:
    """Return what the file says as arguments, where it says it in one line; other keys as their flag alone."""
    found: list[str] = []
    for name, value, lines in _blocks(text)[1:]:
        items = [match[1] for line in lines[1:] if (match := re.match(r"\s*-\s+(.+?)\s*$", line))]
        if value.lower() == "false":
            continue
        found.append(f"--{name}")
        if value.lower() != "true":
            found += [_plain(one) for one in ([value] if value else items)]
    return tuple(found)


def _plain(value: str) -> str:
    quoted = re.fullmatch(r"""(["'])(.*)\1""", value)
    return quoted[2] if quoted else value


def names_of(text: str) -> frozenset[str]:
    """Return the flags that the file sets, without dashes before them."""
    return frozenset(name for name, _, _ in _blocks(text)[1:])


def without(text: str, names: Sequence[str]) -> str:
    """Return the file's text without these flags."""
    return "".join("".join(lines) for name, _, lines in _blocks(text) if not name or name not in names)
