"""Who holds a port: the guard's own judgement, by tables of made-up /proc trees, in each shell."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opsctl.serving.listening import Holding, PortHolder, read_holder, script

UNIT = "/system.slice/vllm.service"
NGINX = "/system.slice/nginx.service"
ME = os.getuid()
NOBODY = 65534
V4, ANY4, V6, ANY6, MAPPED = "0100007F", "0" * 8, "0" * 24 + "01000000", "0" * 32, "0" * 16 + "FFFF00000100007F"
LAN = "0A00000A"  # 10.0.0.10


@dataclass(frozen=True)
class Socket:
    at: str
    pid: int
    uid: int = ME
    port: int = 8000


@dataclass(frozen=True)
class Host:
    """A host's /proc and its control groups, as far as a look needs them."""

    sockets: tuple[Socket, ...] = ()
    groups: dict[int, str] = field(default_factory=lambda: {41: UNIT, 42: f"{UNIT}/worker", 70: NGINX})
    parents: dict[int, int] = field(default_factory=dict)

    def build(self, folder: Path) -> None:
        proc, tables = folder / "proc", {"tcp": "  sl local rem st\n", "tcp6": "  sl local rem st\n"}
        for number, socket in enumerate(self.sockets):
            table = "tcp" if len(socket.at) == 8 else "tcp6"
            at = f"{socket.at}:{socket.port:04X}"
            tables[table] += f"   0: {at} 0:0000 0A 0:0 00:0 0 {socket.uid:6} 0 {900 + number} 1 0 100\n"
        tables["tcp"] += f"   9: {V4}:1F40 0:1234 01 0:0 00:0 0 0 0 999 1 0 100\n"  # a connection is no listener
        (proc / "net").mkdir(parents=True)
        for name, text in tables.items():
            (proc / "net" / name).write_text(text)
        (proc / "net" / "fib_trie").write_text(
            "  |-- 10.0.0.10\n     /32 host LOCAL\n  |-- 10.0.0.9\n     /32 link X\n"
        )
        for pid, group in self.groups.items():
            (proc / str(pid) / "fd").mkdir(parents=True)
            (proc / str(pid) / "stat").write_text(f"{pid} (a ) S 7 b) S {self.parents.get(pid, 1)} 0\n")
            (proc / str(pid) / "cgroup").write_text(f"0::{group}\n")
            (proc / str(pid) / "cmdline").write_bytes(b"python3\0-m\0http.server\0")
            for number, socket in enumerate(self.sockets):
                if socket.pid == pid:
                    (proc / str(pid) / "fd" / str(3 + number)).symlink_to(f"socket:[{900 + number}]")
            procs = folder / "cgroup" / group.lstrip("/") / "cgroup.procs"
            procs.parent.mkdir(parents=True, exist_ok=True)
            with procs.open("a") as file:
                file.write(f"{pid}\n")


def look(folder: Path, host: Host, *, url: str = "http://127.0.0.1:8000", record: str = "", sh: str) -> PortHolder:
    host.build(folder)
    text = script().decode().replace("PROC=/proc CGROUPS=/sys/fs/cgroup", f"PROC={folder}/proc CGROUPS={folder}/cgroup")
    argv = [*sh.split(), "-s", "--", url, UNIT, record]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return read_holder(done.stdout)


OURS = Host((Socket(V4, 41),))
FRONT = Host((Socket(ANY4, 70, 0), Socket(V4, 41, port=8001)))
DECOY = {41: UNIT, 66: "/user.slice/user-65534.slice/session-3.scope"}
STRANGER = Host((Socket(V4, 66, NOBODY),), DECOY)
CONTAINER = Host((Socket(ANY6, 77, 10),), {41: UNIT, 77: f"/system.slice/docker-{'ab12' * 16}.scope"})
UNSEEN = Host((Socket(V4, 0, NOBODY),))

CASES = {
    "the unit's own": (OURS, "", Holding.OURS, "unit"),
    "a worker's, in a group below": (Host((Socket(ANY4, 42),)), "unit", Holding.OURS, "unit"),
    "on both protocols": (Host((Socket(ANY6, 41),)), "unit", Holding.OURS, "unit"),
    "mapped into IPv6": (Host((Socket(MAPPED, 41),)), "unit", Holding.OURS, "unit"),
    "one that the unit started, in a session": (
        Host((Socket(V4, 66, NOBODY),), DECOY, {66: 41}), "", Holding.OURS, "unit",
    ),
    "nobody's": (Host(), "", Holding.NOBODY, "none"),
    "nobody's, which was the unit's": (Host(), "unit", Holding.NOBODY, "none"),
    "nobody's, as when armed (the kernel passes it on)": (Host(), "none", Holding.AS_ARMED, "none"),
    "another port": (Host((Socket(V4, 66, port=8001),), DECOY), "unit", Holding.NOBODY, "none"),
    "another address": (Host((Socket(LAN, 66),), DECOY), "unit", Holding.NOBODY, "none"),
    "a proxy, never seen": (FRONT, "", Holding.UNKNOWN, "nginx.service/0"),
    "a proxy, as when armed": (FRONT, "nginx.service/0", Holding.AS_ARMED, "nginx.service/0"),
    "a proxy, where it was the unit's": (FRONT, "unit", Holding.OTHER, "nginx.service/0"),
    "a proxy, where it was another": (FRONT, "caddy.service/0", Holding.OTHER, "nginx.service/0"),
    "the unit's, where it was a proxy's": (OURS, "nginx.service/0", Holding.OURS, "unit"),
    "a stranger in a session": (STRANGER, "", Holding.OTHER, f"session-*.scope/{NOBODY}"),
    "a stranger, where it was the unit's": (STRANGER, "unit", Holding.OTHER, f"session-*.scope/{NOBODY}"),
    "a stranger, where it was a proxy's": (STRANGER, "nginx.service/0", Holding.OTHER, f"session-*.scope/{NOBODY}"),
    "the same user's, never seen": (
        Host((Socket(V4, 66),), DECOY), "", Holding.UNKNOWN, f"session-*.scope/{ME}",
    ),
    "the same user's, where it was the unit's": (
        Host((Socket(V4, 66),), DECOY), "unit", Holding.OTHER, f"session-*.scope/{ME}",
    ),
    "a stranger on the exact address, before the unit's": (
        Host((Socket(ANY4, 41), Socket(V4, 66, NOBODY)), DECOY), "", Holding.OTHER, f"session-*.scope/{NOBODY}",
    ),
    "a stranger beside the unit's (SO_REUSEPORT)": (
        Host((Socket(V4, 41), Socket(V4, 66)), DECOY), "unit", Holding.OTHER, f"session-*.scope/{ME}",
    ),
    "a stranger on IPv6 alone, where the url says IPv4": (
        Host((Socket(ANY4, 41), Socket(V6, 66, NOBODY)), DECOY), "unit", Holding.OURS, "unit",
    ),
    "a container's, never seen": (CONTAINER, "", Holding.UNKNOWN, "docker-*.scope/10"),
    "a container's, as when armed": (CONTAINER, "docker-*.scope/10", Holding.AS_ARMED, "docker-*.scope/10"),
    "one that cannot be seen": (UNSEEN, "", Holding.OTHER, f"/{NOBODY}"),
    "root's, that cannot be seen": (Host((Socket(V4, 0, 0),)), "", Holding.UNKNOWN, "/0"),
    "a user's job that cron runs": (
        Host((Socket(V4, 66, NOBODY),), {41: UNIT, 66: "/system.slice/cron.service"}),
        "", Holding.OTHER, f"cron.service/{NOBODY}",
    ),
    "a user's scope with a container's name": (
        Host((Socket(V4, 66, NOBODY),), {41: UNIT, 66: f"/user.slice/u/docker-{'ab12' * 16}.scope"}),
        "", Holding.OTHER, f"docker-*.scope/{NOBODY}",
    ),
    "one that cannot be seen, as when armed": (UNSEEN, f"/{NOBODY}", Holding.AS_ARMED, f"/{NOBODY}"),
    "one that cannot be seen, where it was the unit's": (UNSEEN, "unit", Holding.OTHER, f"/{NOBODY}"),
}  # fmt: skip


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
@pytest.mark.parametrize("case", CASES)
def test_the_holder_of_a_port_is_judged(tmp_path: Path, case: str, shell: str) -> None:
    host, record, holding, who = CASES[case]
    seen = look(tmp_path, host, record=record, sh=shell)
    assert (seen.holding, seen.who) == (holding, who), seen


@pytest.mark.parametrize(
    ("url", "host", "holding"),
    [
        ("http://localhost:8000/v1", Host((Socket(V4, 41), Socket(V6, 66, NOBODY)), DECOY), Holding.OTHER),
        ("http://localhost:8000", OURS, Holding.OURS),
        ("http://0.0.0.0:8000", STRANGER, Holding.OTHER),
        ("http://0:8000", OURS, Holding.OURS),
        ("http://[::]:8000", Host((Socket(V6, 66, NOBODY),), DECOY), Holding.OTHER),
        ("http://[::1]:8000", Host((Socket(V4, 66), Socket(V6, 41)), DECOY), Holding.OURS),
        ("http://10.0.0.10:8000", Host((Socket(LAN, 41),)), Holding.OURS),
        ("http://10.0.0.10:8000", OURS, Holding.NOBODY),
        ("http://10.0.0.9:8000", STRANGER, Holding.UNKNOWN),
        ("http://10.9.9.9:8000", STRANGER, Holding.UNKNOWN),
        ("https://127.0.0.1", Host((Socket(V4, 41, port=443),)), Holding.OURS),
        ("http://user@127.0.0.1", Host((Socket(V4, 66, NOBODY, port=80),), DECOY), Holding.OTHER),
        ("http://no.such.name.invalid:8000", STRANGER, Holding.UNKNOWN),
    ],
)
def test_the_sockets_are_those_that_the_url_reaches(tmp_path: Path, url: str, host: Host, holding: Holding) -> None:
    assert look(tmp_path, host, url=url, record="", sh="dash").holding is holding


def test_the_stranger_is_named(tmp_path: Path) -> None:
    seen = look(tmp_path, STRANGER, record="unit", sh="dash").seen
    assert seen == (
        "port 8000 is held by pid 66 (python3 -m http.server ) of user nobody,"
        " in /user.slice/user-65534.slice/session-3.scope"
    )


@pytest.mark.parametrize("said", ["", "sh: not found", "good\tx\ty"])
def test_what_is_not_understood_is_unknown(said: str) -> None:
    assert read_holder(said).holding is Holding.UNKNOWN
