"""Flags in a command line: which words belong to one, under any of its spellings. Pure; nothing is parsed as shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Canonical = Callable[[str], str]
"""Returns the one name of a flag for any spelling of it, both without dashes (``Engine.flag``)."""

_SWITCH = re.compile(r"(?:enable|disable|no|use|skip|allow|trust)-|enforce-eager$|trust-remote-code$|headless$|async-")
"""Flags that take no value: what follows one is another word's."""
_NEGATIVE_NUMBER = re.compile(r"-\d+(?:\.\d+)?")


def flag_name(word: str, canonical: Canonical) -> str | None:
    """Return the canonical name of a flag (``-tp``, ``--tensor_parallel_size=8``), or None for any other word."""
    if not word.startswith("-") or word in {"-", "--"} or _NEGATIVE_NUMBER.fullmatch(word):
        return None
    return canonical(word.lstrip("-").partition("=")[0].replace("_", "-"))


def extent(argv: Sequence[str], start: int) -> int:
    """Return the position after the flag at ``start`` and the values that belong to it."""
    name = argv[start].lstrip("-").replace("_", "-")
    if "=" in argv[start] or _SWITCH.match(name):
        return start + 1
    end = start + 1
    while end < len(argv) and (not argv[end].startswith("-") or _NEGATIVE_NUMBER.fullmatch(argv[end])):
        end += 1
    return end


def flag_value(argv: Sequence[str], name: str, canonical: Canonical) -> str | None:
    """Return the value of a flag (its last occurrence wins, "" for a switch), or None where it is not given."""
    value = None
    for position, word in enumerate(argv):
        if flag_name(word, canonical) == name:
            _, equals, after = word.partition("=")
            value = after if equals else " ".join(argv[position + 1 : extent(argv, position)])
    return value
