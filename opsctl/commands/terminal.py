"""The console of every command. Import it only where something is printed: Rich takes a tenth of a second."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from opsctl.commands.output import behind, clean


class Terminal(Console):
    """A console whose reader may go (opsctl … | head), which ends the printing and is no failure.

    Whatever a host or a log put into the text is cleaned: only Rich's own sequences reach the terminal.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("file", behind(sys.stderr if options.get("stderr") else sys.stdout))
        super().__init__(**options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        # The last step before bytes: every table, live view and line passes here.
        return super()._render_buffer(
            segment if segment.control else Segment(clean(segment.text), segment.style) for segment in buffer
        )

    def on_broken_pipe(self) -> None:
        """Let ``opsctl/cli.py`` end the program, with 0; Rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
