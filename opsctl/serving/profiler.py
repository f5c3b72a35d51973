"""Asking a server's own binary how its profiler is switched on, where the version's number does not tell."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.deadline import Deadline
from opsctl.engines import Engine
from opsctl.engines.base import Switch
from opsctl.errors import DeadlineExceeded
from opsctl.host.protocol import Host

HELP_LIMIT = 120.0
"""Seconds for ``vllm serve --help``: it imports torch."""


def ask_binary(host: Host, engine: Engine, argv: Sequence[str], *, deadline: Deadline) -> Switch:
    """Ask the program of a launch line whether it knows the profiler's argument. Starts no server."""
    question = engine.profiler_question(argv)
    if question is None:
        return "unsure"
    command, flag = question
    try:
        said = host.run(list(command), deadline=deadline.within(HELP_LIMIT, "the server's --help"), check=False)
    except DeadlineExceeded:
        return "unsure"
    if said.exit_status != 0:
        return "unsure"
    return "argument" if flag.encode() in said.stdout else "environment"
