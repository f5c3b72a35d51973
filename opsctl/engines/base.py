"""The protocol of an engine: all that differs between model servers, and nothing that needs a host.

An engine is a program that loads a model and serves the OpenAI routes. What a subclass does not override is what
the servers have in common. Two of its answers are tables: the phases that its log announces (``marks``), and the
lines that explain why it ended (``causes``, from the data file beside its module).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from opsctl.engines.argv import flag_value
from opsctl.engines.phases import Mark
from opsctl.errors import UnfitError

Switch = Literal["environment", "argument", "request", "unsure", "none"]
"""How a version's profiler is switched on. ``request``: by the request alone; ``none``: there is no profiler."""

_RELEASE = re.compile(r"v?(?P<release>\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Launch:
    """What a launch line says of the server that it starts."""

    address: str | None
    """Address that it binds to; None where it is not given."""
    port: int
    model: str
    """The served name; "" where the line names none."""
    path: str | None
    """The model's folder or file, when it is an absolute path."""
    tensor_parallel: int
    python: str | None
    """The Python of the serving environment: the one that runs, or the one beside the program."""


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


@dataclass(frozen=True)
class ProfileRoutes:
    """How a running server's profiler is started and stopped: POST requests without a limit of the server's own."""

    start: str = "/start_profile"
    stop: str = "/stop_profile"
    body: Mapping[str, Any] | None = None
    """JSON body of the start."""
    accepted: str = ""
    """Words that the answer to the start must hold, in lower case: a status 200 alone can be a refusal."""


@dataclass(frozen=True)
class Routes:
    """Where a server tells its version, and what its metrics are called. Metrics are summed over engines."""

    version: tuple[tuple[str, str], ...] = (("/version", "version"),)
    """(route, key of its JSON answer), in the order in which they are asked."""
    running: tuple[str, ...] = ()
    """Gauges of requests that run or wait; the first of each family that is there counts."""
    waiting: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    cache_hits: tuple[str, ...] = ()
    """Prefix cache: counters of tokens found, and in ``cache_queries``, in the same order, of tokens looked for."""
    cache_queries: tuple[str, ...] = ()


class Engine(ABC):
    """One model server. Stateless: ``opsctl.engines.ENGINES`` holds one instance of each."""

    name: ClassVar[str]
    """As the inventory spells it."""
    title: ClassVar[str]
    """As its authors write it."""
    package: ClassVar[str | None] = None
    """Python package whose version is the server's; None for a program without one."""
    port: ClassVar[int] = 8000
    """Where it listens unless told otherwise."""
    model_flags: ClassVar[tuple[str, ...]] = ("model",)
    """Flags that hold the model, canonical."""
    name_flags: ClassVar[tuple[str, ...]] = ("served-model-name",)
    parallel_flag: ClassVar[str] = "tensor-parallel-size"
    aliases: ClassVar[Mapping[str, str]] = {}
    """Canonical name of a flag by each of its other spellings, without dashes."""
    routes: ClassVar[Routes] = Routes()
    marks: ClassVar[tuple[Mark, ...]] = ()
    """Lines that announce a phase of the load, in any order."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Names of its tables of causes in ``engines/causes``, the most particular first."""
    images: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Entrypoint of each container image whose arguments are the server's own, by a pattern of its last name."""
    variables: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the names of its environment variables: those are recorded with a measurement."""
    process_title: ClassVar[str] = ""
    """How the title begins that its processes give themselves, in lower case; "" where they keep their argv."""
    load_limit: ClassVar[str | None] = None
    """Environment variable with the seconds after which it gives up its own load; None where it never does."""

    @abstractmethod
    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position of the server's first own argument, or None when argv starts another program."""

    def flag(self, name: str) -> str:
        """Return the canonical name of a flag for any of its spellings, without dashes, words joined by ``-``."""
        return self.aliases.get(name, name)

    def launch(self, argv: Sequence[str]) -> Launch | None:
        """Return what a launch line says, or None when it does not start this server."""
        start = self.begins(argv)
        if start is None:
            return None
        own = argv[start:]
        positional = own[0] if own and not own[0].startswith("-") else None
        path = next((value for name in self.model_flags if (value := self._value(own, name))), None) or positional
        named = next((value for name in self.name_flags if (value := self._value(own, name))), None)
        return Launch(
            address=self._value(own, "host"),
            port=_whole_number(self._value(own, "port"), self.port),
            model=named.split()[0] if named else path or "",
            path=path if path and path.startswith("/") else None,
            tensor_parallel=_whole_number(self._value(own, self.parallel_flag), 1),
            python=_python_of(argv[:start]),
        )

    def profiler_switch(self, version: str | None) -> Switch:  # noqa: ARG002 - what subclasses choose by
        """Return how this version's profiler is switched on; ``unsure``: ask the binary (``profiler_question``)."""
        return "none"

    def profiler_question(self, argv: Sequence[str]) -> tuple[tuple[str, ...], str] | None:  # noqa: ARG002
        """Return (command that prints the server's flags, flag sought in it) for a launch line; None without one.

        The command starts no server. The flag there means ``argument``, not there ``environment``.
        """
        return None

    def switch_on(self, switch: Switch, trace_dir: str, *, version: str | None) -> ProfilerSwitch:
        """Return arguments and environment that switch the profiler on, without stacks, writing into ``trace_dir``.

        Raises UnfitError where there is no profiler or it cannot be known how: a wrong guess shows after a load.
        """
        raise UnfitError(
            f"{self.title} has no profiler that opsctl can switch on",
            wanted=f"a server with a torch profiler; this one has none (version {version or 'unknown'}, {switch})",
            hint=f"remove `profiler: torch` from the variant and `profile` from the playbook (folder {trace_dir})",
        )

    def profiler_concerns(
        self,
        argv: Sequence[str],  # noqa: ARG002
        environment: Mapping[str, str],  # noqa: ARG002
    ) -> tuple[tuple[str, str, str], ...]:
        """Return (subject, fault, what to do) of the profiler that a production server runs with; empty: it is off."""
        return ()

    def profile_routes(self, trace_dir: str, tool: str) -> ProfileRoutes | None:  # noqa: ARG002
        """Return how a running server is profiled with ``torch`` or ``cuda`` (nsys); None where it cannot be."""
        return None

    def rank_files(self, rank: int) -> tuple[str, ...]:  # noqa: ARG002
        """Return globs that the names of one rank's trace files match; none where it writes no traces."""
        return ()

    def _value(self, argv: Sequence[str], name: str) -> str | None:
        return flag_value(argv, name, self.flag)


def release_of(version: str | None) -> tuple[int, ...] | None:
    """Return the release numbers of a version, whatever follows them; None where there are none.

    >>> release_of("0.16.0rc2.dev344+g1a2b3c")
    (0, 16, 0)
    """
    match = _RELEASE.match(version or "")
    return tuple(int(number) for number in match["release"].split(".")) if match else None


def program_at(argv: Sequence[str], *names: str) -> int | None:
    """Return the position of the first word that is one of these programs, by its file name."""
    return next((at for at, word in enumerate(argv) if PurePosixPath(word).name in names), None)


def module_at(argv: Sequence[str], *modules: str) -> int | None:
    """Return the position of the module that ``python -m`` runs, or of its file, when it is one of these."""
    files = tuple(f"/{module.replace('.', '/')}.py" for module in modules)
    for at, word in enumerate(argv):
        if (word in modules and at > 0 and argv[at - 1] == "-m") or word.endswith(files):
            return at
    return None


def _whole_number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and int(text) > 0 else default


def _python_of(command: Sequence[str]) -> str | None:
    """Return the Python that a command runs, or the one beside its program: that of the serving environment."""
    for word in reversed(command):
        path = PurePosixPath(word)
        if path.is_absolute() and path.name.startswith("python"):
            return word
    # The program is the last word but for its subcommands; before it stand wrappers.
    words = [PurePosixPath(word) for word in command if word not in {"serve", "api_server"}]
    return str(words[-1].parent / "python") if words and words[-1].is_absolute() else None
