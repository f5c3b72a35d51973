"""How often a campaign goes to its host and back, by what it is doing: programs, calls of systemd, HTTP requests.

    python benchmarks/round_trips.py [--json]     exit 1 when a bound is missed; needs root on Linux

On a distant host each costs the line's own time, so their number is what a swap costs there. One campaign runs in this
process against a lab host (a stand-in that loads for 1 s and whose memory is free after 0.5 s); what goes over the
link is counted where it leaves. Waits look again and again, so their numbers depend on how long they last: the bound
is on these very lengths. The heartbeat, which has a connection of its own, is counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from opsctl.campaign import runner
from opsctl.campaign.definition import RunRequest, new_run_id, read_definition
from opsctl.host import connection, systemd
from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import host_entry
from opsctl.lab.lab import Lab, check_machine, reap
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import Standin, install
from opsctl.runs.events import Event
from opsctl.runs.journal import Journal

PRODUCTION = Standin(load_seconds=1.0, service=("TimeoutStopSec=60", "LimitMEMLOCK=infinity"))
STEP = {"command": {"argv": ["/bin/true"]}}
PLAYBOOK = {
    "name": "round-trips",
    "hosts": "gpu1",
    "phases": [{"name": "away", "serve": f"{PRODUCTION.unit}-derived", "steps": [STEP]}],
}
# What is being done until an event of that name, and how many round trips it may take.
STAGES = {
    "host.connected": ("connect", 2),
    "production.found": ("look at production", 8),
    "preflight.passed": ("preflight", 26),
    "lease.armed": ("guard and lease", 8),
    "variant.installed": ("install the variant", 10),
    "service.stopped": ("stop", 8),
    "gpus.free": ("GPU gate, 0.5 s", 12),
    "service.ready": ("start and load, 1 s", 60),
    "step.ended": ("one step", 26),
    "restore.begun": ("end of the phase", 2),
    "production.verified": ("verified, put back", 6),
    "lease.released": ("remove the variant, release", 10),
}
HEARTBEAT = "heartbeat"


class Count:
    """Round trips by stage and kind. A sink of the run's events, which say where a stage ends."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, Counter[str]]] = []
        self._now: Counter[str] = Counter()
        self.heartbeat: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str) -> None:
        """Count one."""
        with self._lock:
            own = self.heartbeat if HEARTBEAT in threading.current_thread().name else self._now
            own[kind] += 1

    def show(self, event: Event) -> None:
        """Close a stage where the event says that it ended."""
        if event.event in STAGES:
            with self._lock:
                self.stages.append((event.event, self._now))
                self._now = Counter()

    def close(self) -> None:
        """Nothing to end."""


def counted(count: Count, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that counts its calls."""

    def call(*arguments: Any, **named: Any) -> Any:
        count.add(kind)
        return function(*arguments, **named)

    return call


def watch(count: Count) -> None:
    """Count what leaves this process: channels that run programs, calls over the bus, HTTP requests."""
    connection.SshLink._started = counted(count, "programs", connection.SshLink._started)  # type: ignore[method-assign] # noqa: SLF001
    systemd.BusSystemd._call = counted(count, "systemd", systemd.BusSystemd._call)  # type: ignore[method-assign] # noqa: SLF001
    httpx.Client.send = counted(count, "http", httpx.Client.send)  # type: ignore[method-assign]


def write_files(folder: Path, host: LabHost) -> None:
    """Write the inventory and the playbook."""
    production = {
        "url": PRODUCTION.url,
        "model": PRODUCTION.served,
        "tensor-parallel": PRODUCTION.tensor_parallel,
        "readiness": {"limit": "120s", "settle": "0s"},
    }
    derived = {"role": "variant", "of": PRODUCTION.unit, "args": {"add": ["--async-scheduling"]}}
    services = {PRODUCTION.unit: production, f"{PRODUCTION.unit}-derived": derived}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"hosts": {"gpu1": host_entry(host)}, "services": services}))
    (folder / "playbook.yml").write_text(yaml.safe_dump(PLAYBOOK))


def measure() -> dict[str, Any]:
    """Carry one campaign out and return the table."""
    check_machine()
    reap()
    count = Count()
    with tempfile.TemporaryDirectory(prefix="opsctl-trips-") as name:
        folder = Path(name)
        lab = Lab.open(folder / "lab", owner=os.getpid())
        try:
            host = lab.up("gpu1")
            install(host, PRODUCTION, gpus=GpuConfig(release_seconds=0.5))
            write_files(folder, host)
            watch(count)
            request = RunRequest(
                str(folder / "playbook.yml"), folder / "inventory.yml", (), "refuse", kill_foreign=False
            )
            with Journal.open(folder / "state") as journal:
                code = runner.begin(read_definition(request), new_run_id(), journal, [count])
        finally:
            lab.down()
    if code:
        sys.exit(f"the campaign ended with {int(code)}")
    return table(count)


def table(count: Count) -> dict[str, Any]:
    """Return every stage with its round trips beside its bound."""
    rows = []
    for event, seen in count.stages:
        stage, bound = STAGES[event]
        rows.append(
            {"stage": stage, **{kind: seen[kind] for kind in ("programs", "systemd", "http")}, "all": seen.total()}
            | {"bound": bound, "held": seen.total() <= bound}
        )
    return {"rows": rows, "heartbeat": dict(count.heartbeat), "held": all(row["held"] for row in rows)}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = measure()
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{'what':30}{'programs':>9}{'systemd':>9}{'http':>6}{'all':>5}{'bound':>7}")
        for row in found["rows"]:
            verdict = "" if row["held"] else "  MISSED"
            numbers = f"{row['programs']:9}{row['systemd']:9}{row['http']:6}{row['all']:5}{row['bound']:7}"
            print(f"{row['stage']:30}{numbers}{verdict}")
        print(f"{'heartbeat, apart':30}{sum(found['heartbeat'].values()):9} in the whole run")
    return 0 if found["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
