"""Programs that start another program: which of their words are their own, and what they do to the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Wrapper:
    """How a program's own words end and the command begins."""

    short: str = ""
    """Letters of options that take a value."""
    long: tuple[str, ...] = ()
    """Long options that take a value as a word of its own."""
    positionals: int = 0
    """Words before the command that are no options: a duration, a mask."""
    variables: bool = False
    """Whether ``NAME=value`` words may stand before the command."""
    subcommands: tuple[str, ...] = ()
    """The words that must follow the program for it to be a wrapper at all (``conda run``)."""
    changes_environment: bool = False
    """Whether the command may get another environment than the unit's."""
    texts: tuple[str, ...] = ()
    """Options whose value is a text for a shell."""
    refused: str = ""
    """Why a command behind it cannot be run as a variant; "" where it can."""
    instead: str = ""
    """What to write instead."""
    one_text: bool = False
    """Whether a single word behind it is a text for a shell."""
    hides: bool = False
    """Whether it starts something that its own words do not show."""


_DETACHED = "the server may run outside of its unit, where systemd neither sees nor stops it"
_DIRECTLY = "write ExecStart= as the server itself: systemd keeps it running, and journalctl -f shows what it prints"

WRAPPERS: Mapping[str, Wrapper] = {
    # Of the shell itself
    "exec": Wrapper("a"),
    "command": Wrapper(),
    "builtin": Wrapper(),
    "nohup": Wrapper(),
    # Scheduling, memory, limits
    "nice": Wrapper("n", ("--adjustment",)),
    "ionice": Wrapper("cn", ("--class", "--classdata")),
    "chrt": Wrapper("TPD", ("--sched-runtime", "--sched-period", "--sched-deadline"), positionals=1),
    "taskset": Wrapper(positionals=1),
    "numactl": Wrapper(
        "NmCpic",
        ("--cpunodebind", "--membind", "--physcpubind", "--interleave", "--preferred", "--cpubind", "--preferred-many"),
    ),
    "prlimit": Wrapper(),
    "stdbuf": Wrapper("ioe", ("--input", "--output", "--error")),
    "timeout": Wrapper("ks", ("--kill-after", "--signal"), positionals=1),
    "setsid": Wrapper(),
    "setarch": Wrapper(positionals=1),
    "choom": Wrapper("n", ("--adjust",)),
    "flock": Wrapper("wE", ("--wait", "--timeout", "--conflict-exit-code"), positionals=1, texts=("-c", "--command")),
    "time": Wrapper("fo", ("--format", "--output")),
    "jemalloc.sh": Wrapper(),
    "systemd-cat": Wrapper("tp", ("--identifier", "--priority", "--stderr-priority", "--level-prefix")),
    "systemd-inhibit": Wrapper("", ("--what", "--who", "--why", "--mode")),
    "tini": Wrapper("pe"),
    "dumb-init": Wrapper("r", ("--rewrite",)),
    "catatonit": Wrapper(),
    "nsys": Wrapper(
        "otswfecyd", ("--output", "--trace", "--sample", "--delay", "--duration"), subcommands=("profile",)
    ),
    # Another user, another root
    "sudo": Wrapper(
        "ughpCDRrtT",
        ("--user", "--group", "--host", "--prompt", "--chdir", "--chroot", "--role", "--type", "--command-timeout"),
        variables=True,
        changes_environment=True,
    ),
    "doas": Wrapper("uC", changes_environment=True),
    "setpriv": Wrapper(
        "",
        (
            "--reuid",
            "--regid",
            "--groups",
            "--inh-caps",
            "--ambient-caps",
            "--bounding-set",
            "--securebits",
            "--pdeathsig",
            "--selinux-label",
            "--apparmor-profile",
        ),
        changes_environment=True,
    ),
    "gosu": Wrapper(positionals=1, changes_environment=True),
    "su-exec": Wrapper(positionals=1, changes_environment=True),
    "chroot": Wrapper(positionals=1, changes_environment=True),
    "runuser": Wrapper(
        "ugGsw",
        ("--user", "--group", "--supp-group", "--shell", "--whitelist-environment"),
        changes_environment=True,
        texts=("-c", "--command"),
    ),
    "su": Wrapper(
        "gGsw",
        ("--group", "--supp-group", "--shell", "--whitelist-environment"),
        changes_environment=True,
        texts=("-c", "--command"),
    ),
    # The environment
    "env": Wrapper("uCS", ("--unset", "--chdir"), variables=True, changes_environment=True),
    "envdir": Wrapper(positionals=1, changes_environment=True),
    "dotenv": Wrapper("fe", ("--file",), subcommands=("run",), changes_environment=True),
    "conda": Wrapper("npe", ("--name", "--prefix", "--cwd"), subcommands=("run",), changes_environment=True),
    "mamba": Wrapper("npe", ("--name", "--prefix", "--cwd"), subcommands=("run",), changes_environment=True),
    "micromamba": Wrapper(
        "npra",
        ("--name", "--prefix", "--root-prefix", "--cwd", "--attach"),
        subcommands=("run",),
        changes_environment=True,
    ),
    "uv": Wrapper(
        "pw",
        (
            "--python",
            "--with",
            "--with-requirements",
            "--with-editable",
            "--extra",
            "--group",
            "--env-file",
            "--project",
            "--directory",
            "--package",
            "--index-url",
            "--extra-index-url",
            "--index",
            "--cache-dir",
        ),
        subcommands=("run",),
        changes_environment=True,
    ),
    "uvx": Wrapper("pw", ("--from", "--with", "--python", "--index-url")),
    "poetry": Wrapper("CP", ("--directory", "--project"), subcommands=("run",), changes_environment=True),
    "pdm": Wrapper("p", ("--project",), subcommands=("run",), changes_environment=True),
    "pipenv": Wrapper(subcommands=("run",), changes_environment=True),
    "hatch": Wrapper("e", ("--env",), subcommands=("run",), changes_environment=True),
    "pixi": Wrapper(
        "e", ("--environment", "--manifest-path", "--tls-root-certs"), subcommands=("run",), changes_environment=True
    ),
    # Several processes
    "mpirun": Wrapper(
        "Hnxc",
        (
            "-np",
            "--np",
            "-hostfile",
            "--hostfile",
            "--host",
            "-host",
            "--map-by",
            "--bind-to",
            "--rank-by",
            "-bind-to",
            "-map-by",
            "-wdir",
            "--wdir",
            "-ppn",
            "-genvall",
            "--prefix",
        ),
        changes_environment=True,
    ),
    "mpiexec": Wrapper(
        "Hnxc", ("-np", "--np", "--hostfile", "--host", "--map-by", "--bind-to"), changes_environment=True
    ),
    # Terminals
    "tmux": Wrapper(
        "LSfcsntxyFe",
        subcommands=("new-session", "new"),
        changes_environment=True,
        one_text=True,
        refused=_DETACHED,
        instead=_DIRECTLY,
    ),
    "screen": Wrapper("Scehpst", ("-Logfile",), changes_environment=True, refused=_DETACHED, instead=_DIRECTLY),
    "systemd-run": Wrapper(
        "Hpu",
        (
            "--unit",
            "--property",
            "--description",
            "--slice",
            "--uid",
            "--gid",
            "--working-directory",
            "--setenv",
            "--nice",
        ),
        changes_environment=True,
        refused="it starts another unit, which this unit's stop does not end",
        instead="write the server as ExecStart= of this unit, and what systemd-run sets as its settings",
    ),
    "ssh": Wrapper(
        "BbcDEeFIiJLlmOopQRSWw",
        positionals=1,
        one_text=True,
        refused="the server runs on another host",
        instead="name that host in the inventory, and the unit that runs there",
    ),
    "nsenter": Wrapper(
        "tSG",
        ("--target", "--setuid", "--setgid"),
        refused="the server runs in other namespaces, which opsctl does not enter",
        instead=_DIRECTLY,
    ),
    # What hides the server
    "supervisord": Wrapper(
        hides=True, refused="supervisord starts the server, by a file of its own", instead=_DIRECTLY
    ),
    "pm2": Wrapper(hides=True, refused="pm2 starts the server, by a file of its own", instead=_DIRECTLY),
    "systemctl": Wrapper(
        hides=True, refused="it starts another unit", instead="name that unit as the service's unit in the inventory"
    ),
    "ray": Wrapper(hides=True, refused="Ray Serve starts the server", instead=_DIRECTLY),
    "kubectl": Wrapper(hides=True, refused="Kubernetes starts the server", instead="campaigns need a unit of systemd"),
    "make": Wrapper(hides=True, refused="a Makefile starts the server", instead=_DIRECTLY),
}
"""Programs by their name without a folder."""


@dataclass(frozen=True)
class Wrapped:
    """A wrapper's words, told apart."""

    wrapper: Wrapper
    own: int
    """How many words are the wrapper's own: the command begins behind them."""
    variables: tuple[str, ...] = ()
    """``NAME=value`` that it adds, ``-NAME`` that it takes away, ``-*`` where it begins with nothing."""
    shell: int | None = None
    """The position of a text for a shell, where the command is one."""
    unknown: str = ""
    """An option that is not known here, so that nothing behind it can be told apart."""

    @property
    def changes_environment(self) -> bool:
        """Whether the command may get another environment than the unit's."""
        return self.wrapper.changes_environment


def unwrap(words: Sequence[str]) -> Wrapped | None:
    """Tell a wrapper's own words from its command. None: the program is no wrapper, or is not used as one."""
    name = PurePosixPath(words[0]).name if words else ""
    wrapper = WRAPPERS.get(name)
    if wrapper is None:
        return None
    if wrapper.hides:
        return Wrapped(wrapper, len(words))
    at, left, seen_subcommand = 1, wrapper.positionals, not wrapper.subcommands
    variables: list[str] = []
    shell: int | None = None
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            if left:
                continue
            break
        if word.startswith("-") and word != "-":
            if word in wrapper.texts and at + 1 < len(words):
                return Wrapped(wrapper, at + 2, tuple(variables), at + 1)
            if name == "env":
                if word.startswith(("-S", "--split-string")):
                    return Wrapped(wrapper, at, tuple(variables), unknown=word)
                variables += _unset_by_env(words, at)
            at += _option_words(word, wrapper, has_next=at + 1 < len(words))
            continue
        if word == "-":
            at += 1
            if name == "env":
                variables.append("-*")
            continue
        if not seen_subcommand:
            if word not in wrapper.subcommands:
                return None
            seen_subcommand = True
        elif left:
            left -= 1
        elif wrapper.variables and _VARIABLE.match(word):
            variables.append(word)
        elif name in {"su", "runuser"} and not any(one in words[:at] for one in ("-u", "--user")):
            shell = _shell_option(words, at, wrapper)
            if shell is None:
                return None
            return Wrapped(wrapper, shell + 1, tuple(variables), shell)
        else:
            break
        at += 1
    if not seen_subcommand:
        return None
    return Wrapped(wrapper, at, tuple(variables), shell)


def _unset_by_env(words: Sequence[str], at: int) -> list[str]:
    """Return what an option of ``env`` takes out of the environment: ``-NAME``, or ``-*`` for everything."""
    if words[at] in {"-i", "--ignore-environment"}:
        return ["-*"]
    return [f"-{words[at + 1]}"] if words[at] in {"-u", "--unset"} and at + 1 < len(words) else []


def _option_words(option: str, wrapper: Wrapper, *, has_next: bool) -> int:
    """Return how many words an option takes, itself included."""
    if option in wrapper.long:
        return 1 + has_next
    if option.startswith("--"):
        return 1
    letters = option[1:]
    for position, letter in enumerate(letters):
        if letter in wrapper.short:
            return 1 if position + 1 < len(letters) else 1 + has_next
    return 1


def _shell_option(words: Sequence[str], at: int, wrapper: Wrapper) -> int | None:
    """Return the position of a shell's text behind a user's name (``su - vllm -c TEXT``)."""
    for position in range(at, len(words) - 1):
        if words[position] in wrapper.texts:
            return position + 1
    return None
