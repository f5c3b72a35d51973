"""The console of every command. Import it only where something is printed: Rich takes a tenth of a second."""

from __future__ import annotations

import errno
import os

from rich.console import Console


class Terminal(Console):
    """A console whose reader may go (opsctl … | head), which ends the printing and is no failure."""

    def on_broken_pipe(self) -> None:
        """Let ``opsctl/cli.py`` end the program, with 0; Rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
