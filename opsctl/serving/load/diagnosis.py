"""Why a load ends, from its log: lines that suggest an end, and the cause that is shown to the person.

A line only suggests. What ends a wait is the death of the unit or of a process, or that nothing moved after the
line (``waiting.py``). Level and logger decide whether a line may suggest at all: a server that only warns goes on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from opsctl.engines.causes import Cause, Table, table
from opsctl.engines.lines import Level, Line, unquoted


@dataclass(frozen=True)
class FatalLine:
    """Why a load will not end well. ``line`` is the server's own, ``when`` seconds of the host's clock."""

    name: str
    advice: str
    transient: bool
    line: str
    when: float = 0.0
    ends: bool = False
    pid: int | None = None
    """Process that wrote it, by the line's prefix."""


_EXCEPTION = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt): \S")
"""The last line of a traceback: an explanation of last resort."""
_UNKNOWN = ("an exception that opsctl does not know", "read the traceback: journalctl -u UNIT", True)


def match_line(line: Line, rows: Table) -> tuple[Cause, ...]:
    """Return the rows that a line of the server belongs to: none for a line that means nothing bad.

    One, or two where an echo quotes in the same line what it is the echo of.
    """
    if _is_harmless(line, rows):
        return ()
    bare = unquoted(line.text)
    found = [cause for cause in rows.causes if cause.pattern.search(bare)]
    echo = next((cause for cause in found if cause.kind == "echo"), None)
    other = next((cause for cause in found if cause.kind != "echo"), None)
    return tuple(cause for cause in (echo, other) if cause is not None)


def _is_harmless(line: Line, rows: Table) -> bool:
    quiet_nccl = line.logger == "NCCL" and line.level is Level.WARNING
    if line.echo or (line.level < Level.PLAIN and not quiet_nccl):
        return True
    return any(row.logger.search(line.logger) and row.pattern.search(line.text) for row in rows.harmless)


class Judge:
    """Keeps the lines that may explain a death, in order, and says what it was. Bounded, whatever a server prints."""

    KEPT = 12

    def __init__(self, tables: tuple[str, ...]) -> None:
        self._rows = table(*tables)
        self._causes: list[FatalLine] = []
        self._exceptions: list[FatalLine] = []
        self.last = ""
        """The last line that speaks of an end."""
        self.suggestion: FatalLine | None = None
        """The last line after which no server was seen to go on."""

    def feed(self, line: Line, when: float) -> bool:
        """Take one line of the log; return whether it says nothing of progress: it speaks of an end, or is noise."""
        if any(row.logger.search(line.logger) and row.pattern.search(line.text) for row in self._rows.harmless):
            return True
        causes = match_line(line, self._rows)
        if not causes:
            known = _EXCEPTION.match(line.text) is not None and not _is_harmless(line, self._rows)
            if known and len(self._exceptions) < self.KEPT:
                self._exceptions.append(FatalLine(*_UNKNOWN, line=line.text, when=when))
            self.last = line.text if known else self.last
            return known
        self.last = line.text
        for cause in causes:
            fatal = FatalLine(cause.name, cause.advice, not cause.lasting, line.text, when, cause.ends, line.pid)
            if cause.kind != "echo" and (len(self._causes) < self.KEPT or cause.ends):
                self._causes = [*self._causes[: self.KEPT - 1], fatal]
            if cause.ends:
                self.suggestion = fatal
        return True

    def refute(self) -> None:
        """Take back that the server ends: it went on. Its lines stay as explanations, should it die later."""
        self.suggestion = None

    def finding(self) -> FatalLine | None:
        """Return the cause: the first that ends, else the first that explains, else the first exception, else an echo.

        None where nothing that was logged explains a death.
        """
        ending = next((cause for cause in self._causes if cause.ends), None)
        found = ending or next(iter(self._causes), None)
        if found is None and self.suggestion is not None and self._exceptions:
            first = self._exceptions[0]
            return replace(self.suggestion, line=first.line, when=first.when)
        return found or self.suggestion or next(iter(self._exceptions), None)

    def quoted(self) -> tuple[str, ...]:
        """Return the lines worth showing: the cause, the first that explain, then what suggested the end."""
        finding = self.finding()
        kept = [finding, *self._causes[:3], *self._exceptions[:2], self.suggestion]
        return tuple(dict.fromkeys(fatal.line[:400] for fatal in kept if fatal is not None))
