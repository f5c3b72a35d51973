"""One lab host that serves the stand-in, one controller's desk, and striking the controller at an exact instant.

The controller is ``opsctl run`` as a person starts it. It is frozen (SIGSTOP, by ``opsctl/strike_points.py``) at a
named commit or mutation of its journal; then the fault is done to it, to its link, or to its host, and it goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from opsctl.deadline import Deadline
from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import inventory
from opsctl.lab.units import Standin, breaches, install, router

PRODUCTION = "vllm-kimi-k25-int4"
PROFILER = f"{PRODUCTION}-profiler"
GUARD = "/usr/local/lib/opsctl/opsctl-guard"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

# libfaketime 0.9.10 breaks a sleep until an instant of the monotonic clock, which it is told to leave alone.
_UNFAKED_SLEEP = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
  return syscall(SYS_clock_nanosleep, clock, flags, until, left) == -1 ? errno : 0;
}
"""

TTL = float(os.environ.get("OPSCTL_FAULTS_TTL", "15"))
"""Seconds without a sign of life after which the guard acts. A machine with many times more to do than it has cores
needs longer: there a healthy controller does not come to its renewals."""
STOP = 12.0
"""The stand-in's TimeoutStopSec, and a little."""
LOAD = 2.0
"""Seconds that the stand-in takes to load."""
BOUND = TTL + STOP + LOAD + 30.0
"""The promise: production answers this long after a strike at the latest."""
CAMPAIGN = 60.0
"""The longest that an undisturbed campaign of ours takes on a busy machine."""

SMALL = {"input-tokens": 16, "output-tokens": 4}
PLAYBOOK: dict[str, Any] = {
    "name": "short",
    "hosts": "kimi",
    "lease": {"ttl": f"{TTL:g}s"},
    "phases": [
        {"name": "baseline", "serve": PRODUCTION, "steps": [{"command": {"argv": ["/bin/true"]}}]},
        {"name": "alone", "serve": "nothing", "steps": [{"command": {"argv": ["/bin/sleep", "1"]}}]},
        {
            "name": "variant",
            "serve": PROFILER,
            "steps": [
                {"serving-benchmark": {"concurrency": [1], "requests": 2, "rounds": 1, "warmup-requests": 0, **SMALL}},
                {"profile": {"warmup-requests": 1, "windows": 1, "requests": 1, **SMALL}},
            ],
        },
    ],
}  # fmt: skip


def standin(**changes: Any) -> Standin:
    """Return production: disabled, so that a boot alone does not bring it back."""
    return Standin(**{"load_seconds": LOAD, "enabled": False, **changes})


def short(phase: str = "") -> dict[str, Any]:
    """Return the playbook; the stages on the variant, which cost the most, only where a phase's state is struck."""
    playbook: dict[str, Any] = json.loads(json.dumps(PLAYBOOK))
    if phase != "variant":
        playbook["phases"][2]["steps"] = playbook["phases"][0]["steps"]
    return playbook


@dataclass
class Bench:
    """A host and the desk of its controller."""

    host: LabHost
    folder: Path
    production: Standin
    playbook: dict[str, Any] = field(default_factory=short)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Keys laid over the inventory's services, by service."""

    @classmethod
    def build(
        cls, host: LabHost, folder: Path, production: Standin | None = None, *, with_router: bool = False
    ) -> Bench:
        """Put the stand-in on a host, started and answering."""
        wanted = production or standin()
        folder.mkdir(parents=True, exist_ok=True)
        if with_router:
            host.write_files(router(wanted, release=host.spec.release))
        install(host, wanted)
        if with_router:
            host.systemctl("start", "vllm-router.service")
        return cls(host, folder, wanted)

    # -- the controller

    @property
    def state(self) -> Path:
        """XDG_STATE_HOME of the controller."""
        return self.folder / "state"

    def environment(self, **extra: str) -> dict[str, str]:
        """Return the controller's environment."""
        return {**os.environ, "XDG_STATE_HOME": str(self.state), "NO_COLOR": "1", "COLUMNS": "200", **extra}

    def write(self) -> None:
        """Write inventory and playbook."""
        document = inventory([self.host], replace(self.production, unit=PRODUCTION))
        document["services"][PRODUCTION]["unit"] = self.production.service_name
        for service, changes in self.changes.items():
            document["services"][service] |= changes
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(document, sort_keys=False))
        (self.folder / "short.yml").write_text(yaml.safe_dump(self.playbook, sort_keys=False))

    def start(self, *words: str, **extra: str) -> Controller:
        """Start ``opsctl`` in the background."""
        self.write()
        self.state.mkdir(exist_ok=True)
        out, err = self.folder / "out", self.folder / "err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "opsctl", *words],
                cwd=self.folder, env=self.environment(**extra), stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        return Controller(process, out, err)

    def run(self, **extra: str) -> Controller:
        """Start the campaign."""
        return self.start("run", "short.yml", "--plain", **extra)

    def frozen_at(self, edge: str, **extra: str) -> Controller:
        """Start the campaign and return when it stands still at a strike point."""
        controller = self.run(OPSCTL_STRIKE=f"{edge}:pause", **extra)
        try:
            controller.await_frozen(edge)
        except BaseException:
            controller.end()
            raise
        return controller

    # -- what is so

    def answers(self) -> bool:
        """Whether production gives tokens, asked on the host itself."""
        body = json.dumps({"model": self.production.served, "prompt": "x", "max_tokens": 2})
        asked = ("curl", "-s", "-m", "10", "-H", "content-type: application/json", "-d", body)
        if self.host.state != "up" or not self.active(self.production.unit):
            return False
        done = self.host.exec(*asked, f"{self.production.url}/v1/completions", check=False)
        return '"completion_tokens"' in done.stdout

    def active(self, unit: str) -> bool:
        """Whether systemd calls a unit active."""
        return self.host.systemctl("is-active", f"{unit}.service", check=False) == "active"

    def lease(self) -> dict[str, str]:
        """Return what the guard shows, asked on the host itself; empty where there is no guard."""
        shown = self.host.exec("sh", GUARD, "show", check=False).stdout
        return dict(line.partition("=")[::2] for line in shown.splitlines())

    def at_rest(self) -> bool:
        """Whether nobody holds the host and production answers."""
        return self.lease().get("state", "none") in {"none", "closed"} and self.answers()

    def verified_steps(self) -> set[str]:
        """Return the steps that the journal calls verified."""
        path = self.state / "opsctl" / "journal.sqlite"
        if not path.exists():
            return set()
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
            rows = journal.execute("SELECT run || ' ' || id FROM steps WHERE state='verified'").fetchall()
        journal.close()
        return {row[0] for row in rows}

    def document(self, *words: str) -> Any:
        """Return what ``opsctl … --json`` prints."""
        done = self.start(*words, "--json")
        done.wait(60)
        return json.loads(done.text)

    def breaches(self) -> list[dict[str, Any]]:
        """Return every time that two servers wanted the same GPU."""
        return breaches(self.host)


@dataclass
class Controller:
    """A running ``opsctl``."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def text(self) -> str:
        """What it printed."""
        return self.out.read_text()

    @property
    def last_line(self) -> str:
        """The last thing that it said: on standard output, or on the other stream where nothing stands there."""
        lines = [line for text in (self.err.read_text(), self.text) for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def frozen(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "T"

    def await_frozen(self, edge: str, seconds: float = 240) -> None:
        """Wait until it stands still; fail at once when it ended without coming there."""

        def there() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode} before {edge}:\n{self.tail()}")
            return self.frozen

        until(there, seconds, f"the way to {edge}", self.tail)

    def tail(self) -> str:
        """Return the end of what it said, for a failure's message."""
        return f"{self.text[-3000:]}\n{self.err.read_text()[-3000:]}"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def wait(self, seconds: float) -> int:
        """Wait for its end and return its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds:g} s:\n{self.tail()}") from None

    def end(self) -> None:
        """Kill it, if it is there."""
        self.signal(signal.SIGKILL)
        self.process.wait(10)


LOOK_EVERY = 0.5
"""Seconds between two looks at a host: each starts programs there, on the same two cores as ten other hosts."""


def until(
    true: Callable[[], bool], seconds: float, what: str, seen: Callable[[], str] = lambda: "", every: float = 0.2
) -> float:
    """Look until it is true; return how long that took. The deadline is the failure."""
    began = time.monotonic()
    deadline = Deadline(seconds, what)
    while not true():
        if deadline.expired:
            raise AssertionError(f"{what} did not come within {seconds:g} s: {seen()}")
        time.sleep(every)
    return time.monotonic() - began


def stepped_clock(folder: Path) -> dict[str, str]:
    """Return the environment of a program whose wall clock is that of the file ``clock`` in a folder, +0d for now."""
    (folder / "clock").write_text("+0d\n")
    source, library = folder / "sleep.c", folder / "sleep.so"
    source.write_text(_UNFAKED_SLEEP)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {
        "LD_PRELOAD": f"{library} {FAKETIME}",
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@contextmanager
def small_disk(folder: Path, size: str = "64m") -> Iterator[Path]:
    """Mount a small disk on a folder, for a controller whose disk is to fill up."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "faults", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free on a folder's disk."""
    with (folder / "filled").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * (1 << 20))
        except OSError:
            pass
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError:
            pass
