"""Where a program's own output begins: login shells print text before it, and some never start it.

sshd hands a command to the login shell, whose start files (~/.bashrc, ~/.zshenv, config.fish) may print anything
on both streams, read the input, or replace the shell. So the program's first act is to write a mark on each stream.
What comes before a mark is not the program's, and no input is sent before the mark has come.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from opsctl.errors import CommandFailed
from opsctl.host.quoting import quote_argv

# The mark is put together on the host: a shell that prints its commands (set -x) does not print it.
_BEGIN = 'printf "%s-%s\\n" "$1" "$2"; printf "%s-%s\\n" "$1" "$2" >&2; shift 2; exec "$@"'
_KEPT = 2000
"""Bytes of that text that are kept for a message."""


class Frame:
    """The frame of one program: its command line, and what of its two streams is the program's own."""

    def __init__(self) -> None:
        self._halves = secrets.token_hex(4), secrets.token_hex(4)
        mark = f"{'-'.join(self._halves)}\n".encode()
        self.stdout, self.stderr = Framed(mark), Framed(mark)

    def command_line(self, argv: Sequence[str]) -> bytes:
        """Return what sshd is given. Bytes, so that arguments which are no UTF-8 cross as they are.

        ``exec`` leaves no shell behind that could print after the program has ended.
        """
        return b"exec " + quote_argv(("sh", "-c", _BEGIN, "sh", *self._halves, *argv)).encode(
            "utf-8", "surrogateescape"
        )

    @property
    def begun(self) -> bool:
        """Whether the program has begun."""
        return self.stdout.begun

    @property
    def unbegun(self) -> str:
        """What a wait for the program has seen of it."""
        return f"the login shell has not started the program{_and_printed(self)}"

    @property
    def preamble(self) -> str:
        """What the login shell printed before the program, the newest last."""
        said = b"\n".join(filter(None, (self.stdout.before.strip(), self.stderr.before.strip())))
        return said.decode(errors="replace")


class Framed:
    """One stream: ``own`` returns what follows the mark."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self.begun = False
        self.before = b""

    def own(self, piece: bytes) -> bytes:
        """Return what of the stream's next piece is the program's own."""
        if self.begun:
            return piece
        self.before += piece
        before, mark, after = self.before.partition(self._mark)
        self.begun = bool(mark)
        self.before = before[-_KEPT:]
        return after


def never_begun(where: str, frame: Frame, status: int) -> CommandFailed:
    """Return the error for a login shell that ended, with ``status``, without starting the program."""
    seen = f"it ended with status {status}{_and_printed(frame)}"
    if status == 127 or "account is" in frame.preamble:
        return CommandFailed(
            f"{where} runs no programs for this login",
            exit_status=status,
            seen=seen,
            where=where,
            hint="the login needs a shell, and sh, env, timeout, cat and id in its PATH",
        )
    return CommandFailed(
        f"the login shell of {where} ended before it started the program",
        exit_status=status,
        seen=seen,
        where=where,
        hint="a start file of that shell (~/.bashrc, ~/.zshenv, config.fish) runs `exec` or `exit` for every login: "
        "let it do so only where `[ -t 0 ]` holds; or sshd or authorized_keys forces another command",
    )


def waits_for_input(where: str, frame: Frame, seconds: float) -> CommandFailed:
    """Return the error for a login shell that starts programs only once its input has ended."""
    return CommandFailed(
        f"the login shell of {where} waits for input before it starts a program",
        exit_status=-1,
        seen=f"no program within {seconds:.0f} s{_and_printed(frame)}",
        where=where,
        hint="a start file of that shell (~/.bashrc, ~/.zshenv, config.fish) runs `read` or another command that "
        "reads the input: let it do so only where `[ -t 0 ]` holds",
    )


def _and_printed(frame: Frame) -> str:
    said = frame.preamble[-400:]
    return f"; it printed: {said}" if said else ""
