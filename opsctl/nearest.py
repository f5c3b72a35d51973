"""The nearest valid name, for messages: a typing error is the usual reason for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 8


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``; nearest: `x` `` for a near name, else ``; known: …``, else ``; there are none``.

    Case, dashes and underscores count for little: ``Input_Tokens`` is near ``input-tokens``.
    """
    names = sorted(set(known))
    if not names:
        return "; there are none"
    near = nearest(name, names)
    if near is not None:
        return f"; nearest: `{near}`"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; known: {', '.join(names[:_SHOWN])}{more}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is close to this one; None where none is."""
    folded: dict[str, str] = {}
    for candidate in sorted(set(known)):
        folded.setdefault(_fold(candidate), candidate)
    close = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")
