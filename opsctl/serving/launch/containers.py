"""``docker run`` and its kin: which words are the client's, which are the image's, and what the client was told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from opsctl.engines import entrypoint_of
from opsctl.serving.launch.words import Word

CLIENTS = {"docker", "podman", "nerdctl"}
COMPOSERS = {"docker-compose", "podman-compose"}
_SWITCHES = {
    *("--detach", "--interactive", "--tty", "--rm", "--rmi", "--init", "--privileged", "--read-only", "--replace"),
    *("--no-healthcheck", "--oom-kill-disable", "--publish-all", "--sig-proxy", "--quiet", "--tls-verify"),
    *("--no-hosts", "--http-proxy", "--env-host", "--read-only-tmpfs", "--passwd", "--disable-content-trust"),
    *("--no-hostname", "--unsetenv-all"),
}
_SHORT_SWITCHES = "ditPq"
_GLOBAL_SWITCHES = {
    "--debug",
    "-D",
    "--tls",
    "--tlsverify",
    "--remote",
    "-r",
    "--syslog",
    "--noout",
    "--transient-store",
}


@dataclass(frozen=True)
class Container:
    """What a line says of the container that it starts."""

    client: str
    """The program, as written: ``/usr/bin/docker``."""
    image: Word
    name: Word | None
    """The word that holds the name: the value, or ``--name=VALUE``."""
    options: tuple[tuple[str, str], ...]
    """(option, value) in order; "" for a switch."""

    @property
    def called(self) -> str:
        """The container's name; "" where the client makes one up."""
        return self.name.rpartition("=")[2] if self.name is not None else ""

    @property
    def detached(self) -> bool:
        """Whether the client returns at once."""
        return any(option in {"-d", "--detach"} and value != "false" for option, value in self.options)

    def renamed(self, name: str) -> str:
        """Return the word that takes the place of ``name``'s."""
        return f"--name={name}" if self.name is not None and self.name.startswith("--name=") else name

    def host_port(self, port: str) -> str:
        """Return the port of the host on which a port of the container is published; itself on the host's network."""
        for option, value in self.options:
            if option in {"-p", "--publish"}:
                outside, _, inside = value.partition("/")[0].rpartition(":")
                if inside == port and outside:
                    return outside.rpartition(":")[2]
        return port

    @property
    def described(self) -> str:
        """The container in words."""
        ports = ", ".join(value for option, value in self.options if option in {"-p", "--publish"})
        network = ", on the host's network" if self._option("--network", "--net") == "host" else ""
        return (
            f"container {self.called or '(no name)'}, image {self.image}{f', ports {ports}' if ports else ''}{network}"
        )

    def _option(self, *names: str) -> str | None:
        return next((value for option, value in reversed(self.options) if option in names), None)

    def entrypoint(self) -> tuple[str, ...]:
        """Return the words that the image puts before its own arguments, as far as its name says them."""
        given = self._option("--entrypoint")
        if given is not None:
            return (given,) if given else ()
        return entrypoint_of(self.image)


def container_of(words: Sequence[Word]) -> tuple[Container, tuple[Word, ...]] | None:
    """Return the container that ``docker run …`` starts, and the words behind its image; None for other commands."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 if "=" in words[at] or words[at] in _GLOBAL_SWITCHES else 2
    at += words[at : at + 1] == ["container"]
    if list(words[at : at + 1]) != ["run"]:
        return None
    at += 1
    options: list[tuple[str, str]] = []
    name: Word | None = None
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        option, equals, value = word.partition("=")
        takes = not equals and _takes_value(word)
        if not equals and not word.startswith("--") and len(word) > 2 and word[1] not in _SHORT_SWITCHES:
            option, value, takes = word[:2], word[2:], False
        if takes:
            value = str(words[at + 1]) if at + 1 < len(words) else ""
        if option == "--name":
            name = words[at + 1] if takes and at + 1 < len(words) else word
        options += [(f"-{letter}", "") for letter in word[1:-1]] if takes and not word.startswith("--") else []
        options.append((f"-{word[-1]}" if takes and not word.startswith("--") else option, value))
        if not takes and not equals and re.fullmatch(rf"-[{_SHORT_SWITCHES}]+", word):
            options[-1:] = [(f"-{letter}", "") for letter in word[1:]]
        at += 1 + takes
    at += list(words[at : at + 1]) == ["--"]
    if at >= len(words):
        return None
    return Container(str(words[0]), words[at], name, tuple(options)), tuple(words[at + 1 :])


def _takes_value(word: str) -> bool:
    """Return whether an option without ``=`` takes the next word; in a cluster of letters the last one may."""
    return word not in _SWITCHES if word.startswith("--") else word[-1] not in _SHORT_SWITCHES


def rename_in(value: str, old: str, new: str) -> str:
    """Return an Exec line that speaks to a container of that name, with another name; other lines stay."""
    names_client = any(re.search(rf"(?<![\w-]){client}(?![\w-])", value) for client in CLIENTS)
    return re.sub(rf"(?<![\w./:-]){re.escape(old)}(?![\w./:-])", lambda _: new, value) if names_client else value


def stops_container(value: str) -> bool:
    """Return whether an Exec line stops a container."""
    return re.search(r"(?:docker|podman|nerdctl)\b.*\b(?:stop|kill|rm)\b", value) is not None


def is_client(word: str) -> bool:
    """Return whether a program is a client of containers."""
    return PurePosixPath(word).name in CLIENTS
