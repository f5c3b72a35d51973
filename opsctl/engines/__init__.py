"""Engines: everything that is one model server's own, a file each behind the protocol of ``base.py``.

Pure: command lines, versions and log lines in, answers out. Knows no host, no inventory and no run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from opsctl.engines.base import Engine, Launch, Routes
from opsctl.engines.llama_cpp import LlamaCpp
from opsctl.engines.lmdeploy import LmDeploy
from opsctl.engines.sglang import Sglang
from opsctl.engines.standin import Standin
from opsctl.engines.tensorrt_llm import TensorRtLlm
from opsctl.engines.tgi import Tgi
from opsctl.engines.vllm import Vllm

__all__ = ["DEFAULT", "ENGINES", "Engine", "Launch", "entrypoint_of", "recognise", "routes_of_all"]

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Vllm(),
        Sglang(),
        Standin(),
        LlamaCpp(),
        TensorRtLlm(),
        Tgi(),
        LmDeploy(),
    )
}
"""Every engine by the name that the inventory uses."""
DEFAULT = Vllm.name
"""The engine of a service for which the inventory names none."""


def recognise(argv: Sequence[str]) -> Engine | None:
    """Return the engine that a command line starts, or None."""
    return next((engine for engine in ENGINES.values() if engine.begins(argv) is not None), None)


def entrypoint_of(image: str) -> tuple[str, ...]:
    """Return the words that a container image puts before its arguments, as far as its name says them.

    >>> entrypoint_of("registry.example:5000/vllm/vllm-openai:v0.11.0@sha256:12ab")
    ('vllm', 'serve')
    """
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    known = (pair for engine in ENGINES.values() for pair in engine.images.items())
    return next((words for pattern, words in known if re.fullmatch(pattern, name)), ())


def routes_of_all() -> Routes:
    """Return the routes and metrics of every engine in one, for a server whose engine is not known."""
    every = [engine.routes for engine in ENGINES.values()]
    return Routes(
        **{each.name: tuple(dict.fromkeys(e for r in every for e in getattr(r, each.name))) for each in fields(Routes)}
    )
