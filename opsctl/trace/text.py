"""Text of single values, read the same way by both readers."""

from __future__ import annotations

import json
import re
from decimal import Decimal, DecimalException

_PLAIN = re.compile(rb"(-?\d{1,18})(?:\.(\d{1,3}))?")
_ESCAPES_OR_CONTROLS = re.compile(rb"[\\\x00-\x1f]")
_LARGEST = 2**62


def nanoseconds(text: bytes) -> int | None:
    """Return whole ns for a time in µs as the file spells it (``12``, ``12.345``, ``1.2e+3``); None if it is none."""
    head, _, fraction = text.partition(b".")
    if len(fraction) == 3 and len(head) < 16 and head.isdigit() and fraction.isdigit():
        return int(head + fraction)  # Kineto's own spelling
    text = text.strip(b' "')
    match = _PLAIN.fullmatch(text)
    if match:
        whole, fraction = match.groups()
        below = int((fraction or b"").ljust(3, b"0"))
        value = int(whole) * 1000 + (-below if whole.startswith(b"-") else below)
    else:
        try:
            number = Decimal(text.decode("ascii")) * 1000
            value = int(number.to_integral_value()) if number.is_finite() and abs(number) < _LARGEST else _LARGEST
        except (DecimalException, UnicodeDecodeError, ValueError):
            return None
    return value if abs(value) < _LARGEST else None


def name_text(raw: bytes) -> tuple[str, bool]:
    """Return a JSON string's text (given without its quotes), and whether it was valid JSON.

    Invalid escapes stay as they are written; bytes that are not UTF-8 become U+FFFD.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), False
    if b'"' not in raw and not _ESCAPES_OR_CONTROLS.search(raw):
        return text, True
    try:
        decoded = json.loads(f'"{text}"')
    except ValueError:
        return text, False
    if not isinstance(decoded, str):
        return text, False
    return printable(decoded), True


def printable(name: str) -> str:
    """Return a name without lone surrogates (half an escape is valid JSON and cannot be printed): shown as ?."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")


def lane_text(raw: bytes) -> str:
    """Return a pid or tid, a number or a string in the file, as text."""
    return name_text(raw.strip().strip(b'"'))[0]
