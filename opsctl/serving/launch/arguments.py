"""Editing a server's command line as argv: which words belong to a flag, and how they changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from opsctl.engines import Engine
from opsctl.engines.argv import extent, flag_name
from opsctl.errors import UnfitError
from opsctl.playbook.models import ArgumentEdits


def edit(argv: Sequence[str], edits: ArgumentEdits, engine: Engine, *, where: str) -> tuple[str, ...]:
    """Return argv after removals, replacements and additions; words that stay are the same objects.

    Raises UnfitError when a flag to be removed is not there (a difference that silently does nothing would be
    reported as a measured one).
    """
    words = list(argv)
    for flag in edits.remove:
        words = _remove(words, flag, engine, where)
    for flag, value in edits.replace.items():
        words = _replace(words, flag, str(value), engine)
    return (*words, *edits.add)


def _remove(words: list[str], flag: str, engine: Engine, where: str) -> list[str]:
    wanted = flag_name(flag if flag.startswith("-") else f"--{flag}", engine.flag)
    found = [position for position, word in enumerate(words) if flag_name(word, engine.flag) == wanted]
    if not found:
        flags = sorted({name for word in words if (name := flag_name(word, engine.flag))})
        near = difflib.get_close_matches(wanted or "", flags, n=1)
        variables = [word for word in words if getattr(word, "many", False) or re.match(r"\$\{?\w+\}?$", word)]
        raise UnfitError(
            f"{flag} is not on the command line, so it cannot be removed",
            seen=", ".join(f"--{name}" for name in flags) or "no flags",
            where=where,
            hint=f"did you mean --{near[0]}?"
            if near
            else f"arguments inside {', '.join(variables)} are not seen: they come from the environment"
            if variables
            else "see `systemctl cat`",
        )
    for position in reversed(found):
        del words[position : extent(words, position)]
    return words


def _replace(words: list[str], flag: str, value: str, engine: Engine) -> list[str]:
    spelled = flag if flag.startswith("-") else f"--{flag}"
    wanted = flag_name(spelled, engine.flag)
    found = [position for position, word in enumerate(words) if flag_name(word, engine.flag) == wanted]
    if not found:
        return [*words, spelled, value]
    position = found[-1]
    if any(getattr(word, "shared", False) for word in words[position : extent(words, position)]):
        # It comes out of a variable with others. Both engines take the last of several.
        return [*words, spelled, value]
    if "=" in words[position]:
        words[position] = f"{words[position].partition('=')[0]}={value}"
        return words
    end = extent(words, position)
    return [*words[: position + 1], value, *words[end:]]


def differences(before: Sequence[str], after: Sequence[str], engine: Engine) -> tuple[str, ...]:
    """Return how two command lines differ, argument by argument: ``- --x 1``, ``+ --y 2``, ``~ --z: 1 → 2``."""
    old, new = _by_argument(before, engine), _by_argument(after, engine)
    lines = []
    for name, text in old.items():
        if name not in new:
            lines.append(f"- {text}")
        elif new[name] != text:
            lines.append(f"~ {text} → {new[name]}")
    lines += [f"+ {text}" for name, text in new.items() if name not in old]
    return tuple(lines)


def _by_argument(argv: Sequence[str], engine: Engine) -> dict[str, str]:
    """Return each flag with its values as one text, keyed by canonical name; other words by their own text."""
    found: dict[str, str] = {}
    position = 0
    while position < len(argv):
        name = flag_name(argv[position], engine.flag)
        end = extent(argv, position) if name else position + 1
        key = name or f"word {argv[position]}"
        while key in found:
            key += "'"
        found[key] = " ".join(argv[position:end])
        position = end
    return found
