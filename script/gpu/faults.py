#!/usr/bin/env python3
"""Strike campaigns on the GPU host and measure how long production stays away. Runs on the GPU machine, after `boot`.

python3 script/gpu/faults.py [FAULT …] writes one JSON document: for each fault when it struck, how the run ended, after
how many seconds production answered a completion again, and whether the lease closed (which only a verified restore
does). Exit status 1 when production did not come back within the bound.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

UNIT = "vllm-kimi-k25-int4"
INIT = Path("/tmp/gpuhost/init.pid")  # noqa: S108 - where boot puts it
FOLDER = "/opt/opsctl"
TTL = 45.0
LOAD = 120.0
"""Longest load of the server that was seen here, in seconds."""
BOUND = TTL + 30 + LOAD + 60
"""Lease, stop of what the run started, load, and the guard's verification: production must be back by then."""


class NotStruckError(Exception):
    """The campaign never came to the place where the fault strikes."""


@dataclass
class Outcome:
    """What one fault did. Times are seconds after the strike; `error` says why it was not struck."""

    fault: str
    exit_code: int | None
    back_after: float | None
    lease: str
    bound: float = BOUND
    error: str = ""


def inside(*command: str, limit: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command inside the host."""
    argv = ["nsenter", "-t", INIT.read_text().strip(), "-a", *command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)


class Campaign:
    """One run of faults.yml in a session of its own, its events read as they come."""

    def __init__(self, name: str, inventory: str = "inventory.yml") -> None:
        self.log = Path(f"/tmp/gpuhost/{name}.jsonl")  # noqa: S108
        command = f"cd {FOLDER} && exec opsctl run faults.yml -i {inventory} --json"
        argv = ["nsenter", "-t", INIT.read_text().strip(), "-a", "sh", "-c", command]
        self.process = subprocess.Popen(
            argv, stdout=self.log.open("w"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def await_event(self, event: str, text: str = "", limit: float = 240) -> None:
        """Return when the event was said, with that text in its message."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            for line in self.log.read_text().splitlines():
                if f'"event": "{event}"' in line and text in line:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        if self.process.poll() is None:
            self.strike(signal.SIGTERM)
        raise NotStruckError(f"{self.log}: no {event} {text}: {self.log.read_text()[-1500:]}")

    def strike(self, number: signal.Signals) -> None:
        """Send a signal to opsctl and whatever it started here."""
        os.killpg(self.process.pid, number)

    def ended(self, limit: float) -> int | None:
        """Return the exit code; None when it still runs."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None


def answers() -> bool:
    """Return whether production generates: one token of one completion, and its own unit active."""
    body = json.dumps({"model": "kimi-k2.5", "prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - our own server
            good = bool(json.load(answer)["usage"]["completion_tokens"])
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return False
    return good and inside("systemctl", "is-active", UNIT).stdout.strip() == "active"


def production_back(fault: str, campaign: Campaign, struck: float) -> Outcome:
    """Wait for production, then for the end of the lease."""
    back = None
    while time.monotonic() - struck < BOUND:
        if answers():
            back = time.monotonic() - struck
            break
        time.sleep(0.5)
    lease = ""
    while time.monotonic() - struck < BOUND + 60:
        lease = lease_state()
        if lease not in {"held", "restoring"}:
            break
        time.sleep(1)
    return Outcome(fault, campaign.ended(60), back, lease)


def lease_state() -> str:
    """Return the state of the host's lease, as its guard says it."""
    said = inside("sh", "-c", f"cd {FOLDER} && opsctl lease show gpuhost --json").stdout
    try:
        return str(json.loads(said)["gpuhost"]["state"])
    except (ValueError, KeyError, TypeError):
        return said[:200]


def controller_killed() -> Outcome:
    """Kill -9 the controller while the profiler variant serves."""
    campaign = Campaign("controller-killed")
    campaign.await_event("service.ready", "profiler")
    struck = time.monotonic()
    campaign.strike(signal.SIGKILL)
    # The variant answers on the same port: production's own unit must be the one that is active.
    return production_back("controller killed, variant serving", campaign, struck)


def link_cut() -> Outcome:
    """Freeze the forwarder that carries every SSH connection of the run."""
    forwarder = subprocess.Popen([sys.executable, str(Path(__file__).with_name("forward.py")), "2223", "2222"])
    inside("sh", "-c", f"cd {FOLDER} && sed s/2222/2223/ inventory.yml >cut.yml")
    inside("sh", "-c", "cd /etc/ssh && sed -n 's/]:2222/]:2223/p' ssh_known_hosts >cut && cat cut >>ssh_known_hosts")
    try:
        campaign = Campaign("link-cut", "cut.yml")
        campaign.await_event("service.ready", "profiler")
        struck = time.monotonic()
        forwarder.send_signal(signal.SIGSTOP)
        return production_back("link cut, variant serving", campaign, struck)
    finally:
        forwarder.kill()


def engine_killed(phase: str, ready: str) -> Callable[[], Outcome]:
    """Return the fault that kills vLLM's engine core in a phase."""

    def strike() -> Outcome:
        campaign = Campaign(f"engine-killed-{phase}")
        campaign.await_event("step.begun", ready)
        time.sleep(2)
        struck = time.monotonic()
        inside("pkill", "-9", "-f", "EngineCore")
        return production_back(f"engine core killed in {phase}", campaign, struck)

    return strike


def foreign_memory() -> Outcome:
    """Hold 40 GiB of the GPU from a process that is nobody's unit, for a minute, while production is down."""
    campaign = Campaign("foreign-memory")
    campaign.await_event("step.begun", "kernels")
    program = "import torch,time; x=torch.empty(40<<30,dtype=torch.uint8,device='cuda'); time.sleep(60)"
    holder = subprocess.Popen(["/srv/vllm/bin/python", "-c", program])
    struck = time.monotonic()
    try:
        return production_back("40 GiB of GPU memory held by a foreign process for 60 s", campaign, struck)
    finally:
        holder.kill()


def disk_full() -> Outcome:
    """Fill the disk that holds the lease and the results while the variant serves, then kill the controller."""
    inside("sh", "-c", "mkdir -p /var/lib/opsctl && mount -t tmpfs -o size=12G,mode=0700 tmpfs /var/lib/opsctl")
    campaign = Campaign("disk-full")
    campaign.await_event("service.ready", "profiler")
    struck = time.monotonic()
    fill = "fallocate -l 11800M filler; dd if=/dev/zero of=rest bs=64k 2>/dev/null; true"
    inside("sh", "-c", f"cd /var/lib/opsctl && {fill}")
    campaign.strike(signal.SIGKILL)
    try:
        return production_back("disk full and controller killed, variant serving", campaign, struck)
    finally:
        inside("rm", "-f", "/var/lib/opsctl/filler", "/var/lib/opsctl/rest")


def reboot() -> Outcome:
    """End the host's systemd at once with the variant serving, and boot it anew from its disk."""
    campaign = Campaign("reboot")
    campaign.await_event("service.ready", "profiler")
    struck = time.monotonic()
    os.kill(int(INIT.read_text()), signal.SIGKILL)
    time.sleep(1)
    here = Path(__file__).parent
    subprocess.run(["bash", str(here / "gpuhost"), "/tmp/gpuhost-root", "2222"], check=True, timeout=60)  # noqa: S108
    return production_back("host lost its power and booted, variant serving", campaign, struck)


FAULTS: dict[str, Callable[[], Outcome]] = {
    "controller": controller_killed,
    "link": link_cut,
    "engine-baseline": engine_killed("baseline", "baseline"),
    "engine-profile": engine_killed("profile", "profile"),
    "foreign": foreign_memory,
    "disk": disk_full,
    "reboot": reboot,
}


def main(chosen: list[str]) -> int:
    """Strike with each fault in turn; print the outcomes."""
    outcomes = []
    for name in chosen or list(FAULTS):
        try:
            outcome = FAULTS[name]()
        except NotStruckError as error:
            outcome = Outcome(name, None, None, lease_state(), error=str(error))
        print(json.dumps(asdict(outcome)), file=sys.stderr, flush=True)
        outcomes.append(outcome)
    print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return int(any(outcome.back_after is None for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
