"""A small campaign on a lab host that serves the stand-in without torch, driven as a person would: by ``opsctl``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import inventory
from opsctl.lab.lab import Lab
from opsctl.lab.units import Standin, breaches, install, router

_ANSWER = {
    "argv": ["/bin/sh", "-c", """echo '{"answer": 42}' >out.json"""],
    "collect": ["out.json"],
    "figures": {"answer": "out.json#answer"},
}
_TRUE = {"argv": ["/bin/true"]}

PLAYBOOK: dict[str, Any] = {
    "name": "small",
    "hosts": "kimi",
    "lease": {"ttl": "150s"},
    "phases": [
        {"name": "baseline", "serve": "vllm-kimi-k25-int4", "steps": [{"command": _ANSWER}]},
        {"name": "alone", "serve": "nothing", "steps": [{"command": _TRUE}]},
        {"name": "variant", "serve": "vllm-kimi-k25-int4-profiler", "steps": [{"command": _TRUE}]},
    ],
}


@dataclass
class Ran:
    """One call of opsctl that ended."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of ``run --json``."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of one name."""
        return [item for item in self.events if item.get("event") == event]


@dataclass
class Desk:
    """A controller's desk: its state, its inventory and playbook, and opsctl."""

    folder: Path
    hosts: list[LabHost]
    inventory: dict[str, Any]
    playbook: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(PLAYBOOK)))

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1", "COLUMNS": "200", **extra}

    def write(self) -> None:
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(self.inventory, sort_keys=False))
        (self.folder / "small.yml").write_text(yaml.safe_dump(self.playbook, sort_keys=False))

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "opsctl", *words]

    def opsctl(self, *words: str, folder: Path | None = None, **extra: str) -> Ran:
        """Run opsctl to its end, in the desk's folder or another."""
        self.write()
        done = subprocess.run(
            self.argv(*words),
            cwd=folder or self.folder,
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def run(self, *words: str) -> Ran:
        return self.opsctl("run", "small.yml", "--json", *words)

    def start_run(self, *words: str) -> Running:
        """Start a run in the background, its events going to a file."""
        self.write()
        out = (self.folder / "events.jsonl").open("w")
        err = (self.folder / "run.err").open("w")
        process = subprocess.Popen(
            self.argv("run", "small.yml", "--json", *words),
            cwd=self.folder,
            env=self.environment(),
            stdout=out,
            stderr=err,
        )
        out.close()
        err.close()
        return Running(process, self.folder / "events.jsonl", self.folder / "run.err")

    @property
    def last_run(self) -> str:
        return str(json.loads(self.opsctl("runs", "--json").out)[0]["run"])

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.opsctl("status", "--json").out)
        return document


@dataclass
class Running:
    """A run at work."""

    process: subprocess.Popen[bytes]
    events: Path
    errors: Path

    def await_event(self, name: str, seconds: float = 90, **match: str) -> dict[str, Any]:
        """Wait until an event is there. Fails with what there is when it does not come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.events.read_text().splitlines():
                event: dict[str, Any] = json.loads(line)
                if event["event"] == name and all(event.get(key) == value for key, value in match.items()):
                    return event
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"no {name}: {self.events.read_text()[-2000:]} {self.errors.read_text()}")

    def await_error(self, words: str, seconds: float = 30) -> None:
        """Wait until something is said on standard error."""
        end = time.monotonic() + seconds
        while words not in self.errors.read_text():
            assert time.monotonic() < end, f"no {words!r}: {self.errors.read_text()}"
            time.sleep(0.02)

    def wait(self, seconds: float = 100) -> Ran:
        code = self.process.wait(seconds)
        return Ran(code, self.events.read_text(), self.errors.read_text())


def invocation(host: LabHost, unit: str) -> str:
    """Which start of a unit runs now."""
    return host.systemctl("show", "-p", "InvocationID", "--value", f"{unit}.service").strip()


def active(host: LabHost, unit: str) -> bool:
    return host.exec("systemctl", "is-active", f"{unit}.service", check=False).stdout.strip() == "active"


def answers(host: LabHost, standin: Standin) -> bool:
    """Whether a completion gives tokens, asked on the host itself."""
    body = json.dumps({"model": standin.served, "prompt": "x", "max_tokens": 2})
    done = host.exec(
        "curl",
        "-s",
        "-m",
        "10",
        "-H",
        "content-type: application/json",
        "-d",
        body,
        f"{standin.url}/v1/completions",
        check=False,
    )
    return '"completion_tokens"' in done.stdout


@pytest.fixture(scope="module")
def serving_host(lab: Lab) -> Iterator[LabHost]:
    """A host of the module's own on which production serves, with a router that requires it."""
    host = lab.up(f"served-{os.urandom(2).hex()}")
    host.write_files(router(Standin()))
    install(host, Standin())
    host.systemctl("start", "vllm-router.service")
    yield host
    assert breaches(host) == []
    lab.down(host.name)


@pytest.fixture
def desk(serving_host: LabHost, tmp_path: Path) -> Desk:
    """A desk from which the module's host is driven."""
    return Desk(tmp_path, [serving_host], inventory([serving_host], Standin()))


@pytest.fixture
def make_desk(tmp_path: Path) -> Callable[[list[LabHost]], Desk]:
    """A function that makes a desk for other hosts."""
    return lambda hosts: Desk(tmp_path, hosts, inventory(hosts, Standin()))
