"""The stand-in of the lab's hosts: it speaks vLLM's dialect, so only its launch line is its own."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.engines.base import module_at
from opsctl.engines.vllm import Vllm


class Standin(Vllm):
    """``python -m opsctl.lab.standin serve MODEL``; the lab also installs it as a program named ``vllm``."""

    name = "standin"
    title = "the lab's stand-in"
    images = {}  # noqa: RUF012 - a constant

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after ``serve``."""
        module = module_at(argv, "opsctl.lab.standin", "opsctl.lab.standin.__main__")
        return None if module is None or list(argv[module + 1 : module + 2]) != ["serve"] else module + 2
