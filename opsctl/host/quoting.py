"""The only place where arguments become a command line for a remote shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

# zsh expands =WORD.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+:,./=-]*")
_PARTS = re.compile(r"[\\']+|[^\\']+")


def quote_argv(argv: Sequence[str]) -> str:
    """Return one command line that a POSIX shell, and fish, splits back into exactly ``argv``.

    sshd hands a command to the login shell as one string, so every argument is quoted, whatever it holds:
    spaces, quotes, dollars, newlines, bytes that are no UTF-8 (as surrogates). Raises ValueError for an
    empty argv and for a NUL, which no argument of a program can hold.
    """
    if not argv:
        raise ValueError("wanted a program and its arguments, found an empty argv")
    for word in argv:
        if "\0" in word:
            raise ValueError(f"an argument cannot hold a NUL byte: {word!r}")
    return " ".join(_quote(word) for word in argv)


def _quote(word: str) -> str:
    """Return one argument, quoted where it needs to be.

    fish takes a backslash between single quotes for an escape, so backslashes go between double ones, where all
    shells agree.
    """
    if _PLAIN.fullmatch(word):
        return word
    return (
        "".join(
            '"' + part.replace("\\", "\\\\") + '"' if part[0] in "\\'" else f"'{part}'" for part in _PARTS.findall(word)
        )
        or "''"
    )


def show_argv(argv: Sequence[str], *, longest: int = 160) -> str:
    """Return a command line for a person to read: quoted, on one line, cut where it gets long."""
    text = shlex.join(argv).replace("\n", "\\n")
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
