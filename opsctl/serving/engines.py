"""How a server's profiler is switched on: by engine and version.

From the releases' own sources: vLLM up to 0.12 knows only the environment, 0.13 and 0.14 know both, from 0.16
on there is only ``--profiler-config`` (with the environment alone the routes answer 404). A development build
such as ``0.16.0rc2.dev344`` sorts below 0.16 in PEP 440 and behaves as 0.16: release numbers are compared,
nothing else. Where that is not sure (0.15, builds without a tag) the binary is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded, UnfitError
from opsctl.host.protocol import Host
from opsctl.playbook.models import Engine

Switch = Literal["environment", "argument", "unsure"]

_RELEASE = re.compile(r"v?(?P<release>\d+(?:\.\d+)+)")
FLAG = "--profiler-config"
HELP_LIMIT = 120.0
"""Seconds for ``vllm serve --help``: it imports torch."""


@dataclass(frozen=True)
class ProfilerSwitch:
    """How to start a server with its profiler on."""

    add: tuple[str, ...] = ()
    """Arguments appended."""
    remove: tuple[str, ...] = ()
    """Flags taken away first, where they are given."""
    env: Mapping[str, str] = field(default_factory=dict)
    how: str = ""
    """In words, for the person and the report."""


def release_of(version: str | None) -> tuple[int, ...] | None:
    """Return the release numbers of a version, whatever follows them; None where there are none.

    >>> release_of("0.16.0rc2.dev344+g1a2b3c")
    (0, 16, 0)
    """
    match = _RELEASE.match(version or "")
    return tuple(int(number) for number in match["release"].split(".")) if match else None


def profiler_switch(engine: Engine, version: str | None) -> Switch:
    """Return how this version's profiler is switched on, by its number alone."""
    release = release_of(version)
    if engine is Engine.SGLANG:
        return "environment"
    if release is None or release[:2] == (0, 15) or (release[:2] < (0, 6) and ".dev" in (version or "")):
        # Builds without a tag call themselves 0.1.dev…: their number says nothing.
        return "unsure"
    return "argument" if release >= (0, 13) else "environment"


def ask_binary(host: Host, argv: Sequence[str], *, deadline: Deadline) -> Switch:
    """Ask the server's own ``serve --help`` whether it knows the argument. ``argv`` is the unit's command.

    Starts no server: the command up to and with ``serve``, then ``--help=all``.
    """
    if "serve" not in argv:
        return "unsure"
    question = [*argv[: list(argv).index("serve") + 1], "--help=all"]
    try:
        said = host.run(question, deadline=deadline.within(HELP_LIMIT, "the server's --help"), check=False)
    except DeadlineExceeded:
        return "unsure"
    if said.exit_status != 0:
        return "unsure"
    return "argument" if FLAG.encode() in said.stdout else "environment"


def switch_profiler(engine: Engine, switch: Switch, trace_dir: str, *, version: str | None) -> ProfilerSwitch:
    """Return arguments and environment that switch the profiler on, stacks off, into a folder of this run.

    ``max_iterations`` is never set: it moves the flush into an RPC of 300 s, and its stop test is off by one.
    Raises UnfitError where it cannot be known how: a wrong guess shows after a load of half an hour.
    """
    if engine is Engine.SGLANG:
        env = {"SGLANG_TORCH_PROFILER_DIR": trace_dir, "SGLANG_PROFILE_WITH_STACK": "false"}
        return ProfilerSwitch(env=env, how="SGLang: the request names the folder, the environment its default")
    if switch == "argument":
        config = {
            "profiler": "torch",
            "torch_profiler_dir": trace_dir,
            "torch_profiler_with_stack": False,
            "torch_profiler_use_gzip": True,
            "torch_profiler_record_shapes": False,
        }
        add = (FLAG, json.dumps(config, separators=(",", ":")))
        return ProfilerSwitch(add, (FLAG,), {}, f"vLLM {version}: {FLAG}, stacks off")
    if switch == "environment":
        env = {
            "VLLM_TORCH_PROFILER_DIR": trace_dir,
            "VLLM_TORCH_PROFILER_WITH_STACK": "0",
            "VLLM_TORCH_PROFILER_RECORD_SHAPES": "0",
        }
        return ProfilerSwitch(env=env, how=f"vLLM {version}: VLLM_TORCH_PROFILER_DIR, stacks off")
    raise UnfitError(
        "it cannot be told how this server's profiler is switched on",
        wanted="a version such as 0.32.0, or a `serve --help` that lists --profiler-config or does not",
        seen=f"version {version or 'unknown'}",
        hint="start production (its /version is asked), or put the right arguments into args.add of the variant",
    )
