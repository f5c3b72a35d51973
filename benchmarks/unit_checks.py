"""Twenty unit checks on one lab host, each tool as a whole process: opsctl beside Ansible, pyinfra and plain ssh.

    python benchmarks/unit_checks.py [--json] [--rounds N]     exit 1 when a bound is missed; needs root on Linux

The tools run in turn, round after round, so that whatever else the machine does meets all of them alike; the
bounds are on the ratio of medians. Each does what its own manual shows for "is this unit running":

- opsctl: ``opsctl check HOST UNIT…``
- Ansible: a loop of ``ansible.builtin.systemd_service``, pipelining and ControlPersist on, no facts gathered
- pyinfra: ``systemd.service(running=True)`` for each unit, which changes nothing where it runs
- ssh: one ``ssh HOST systemctl show`` of all twenty, the floor: it judges nothing

Two hosts are measured. On the first, root's login files are this machine's own, as an overlay of it has them
(here they start pyenv, 0.12 s for every command over ssh, as conda or NVM do elsewhere); the bounds are on
this one. On the second the login shell is bare: what remains is each tool's own work. A tool that runs a
command for every unit pays for the login twenty times, opsctl three times.

Ansible and pyinfra live in an environment of the benchmark's own, ``.venv-peers``, made when it is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.lab.hosts import LabHost
from opsctl.lab.lab import Lab, check_machine, reap
from opsctl.lab.spec import HostSpec, SeedFile

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers"
PACKAGES = ("ansible-core>=2.17,<2.20", "pyinfra>=3,<4")
LOGIN = Path("/root/.bashrc")
UNITS = tuple(f"bench-{number:02d}.service" for number in range(20))
BOUNDS = {"ansible": 12.0, "pyinfra": 3.5}
LIMIT = 300.0


@dataclass
class Tool:
    """One contender: how it is started, and what proves that it looked at all twenty units."""

    name: str
    argv: list[str]
    proof: str
    environment: dict[str, str] = field(default_factory=dict)
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    def run(self, folder: Path) -> None:
        """Run once, keep wall-clock and processor seconds. Exits with what it said when it failed."""
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(
            self.argv,
            cwd=folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        wall, after = time.perf_counter() - started, os.times()
        said = done.stdout + done.stderr
        if done.returncode != 0 or self.proof not in said:
            sys.exit(f"{self.name} ended with status {done.returncode}:\n{said[-3000:]}")
        self.walls.append(wall)
        self.cpus.append(after.children_user - before.children_user + after.children_system - before.children_system)


def peers() -> Path:
    """Return the bin folder of the peers' environment, made when it is not there."""
    if not (PEERS / "bin" / "pyinfra").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run([PEERS / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
    return PEERS / "bin"


def prepare(host: LabHost, folder: Path) -> list[Tool]:
    """Start twenty units, write each tool's files, and return the tools."""
    folder.mkdir()
    for unit in UNITS:
        host.write_file(f"/etc/systemd/system/{unit}", "[Service]\nExecStart=/bin/sleep infinity\n")
    host.systemctl("daemon-reload")
    host.systemctl("start", *UNITS)
    options = (
        f"-F none -o UserKnownHostsFile={host.known_hosts} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes "
        f"-o GlobalKnownHostsFile=/dev/null"
    )
    (folder / "opsctl.yml").write_text(
        f"hosts:\n  lab: {{address: {host.address}, user: root, identity-file: {host.identity_file}, "
        f"known-hosts: {host.known_hosts}}}\n",
    )
    (folder / "hosts.ini").write_text(
        f"lab ansible_host={host.address} ansible_user=root ansible_ssh_private_key_file={host.identity_file} "
        f'ansible_ssh_common_args="{options}" ansible_python_interpreter=/usr/bin/python3\n',
    )
    (folder / "play.yml").write_text(
        "- hosts: lab\n  gather_facts: false\n  tasks:\n    - ansible.builtin.systemd_service:\n"
        "        name: '{{ item }}'\n        state: started\n      loop: " + json.dumps(UNITS) + "\n",
    )
    (folder / "inventory.py").write_text(
        f'lab = [("{host.address}", {{"ssh_user": "root", "ssh_key": "{host.identity_file}", '
        f'"ssh_known_hosts_file": "{host.known_hosts}", "ssh_strict_host_key_checking": "yes"}})]\n',
    )
    (folder / "deploy.py").write_text(
        "from pyinfra.operations import systemd\n"
        f"for unit in {UNITS!r}:\n    systemd.service(name=unit, service=unit, running=True)\n",
    )
    bin_ = peers()
    return [
        Tool("opsctl", [str(ROOT / ".venv/bin/opsctl"), "check", "lab", *UNITS, "-i", "opsctl.yml"], UNITS[-1]),
        Tool(
            "ansible",
            [str(bin_ / "ansible-playbook"), "-i", "hosts.ini", "play.yml"],
            "ok=1    changed=0",
            {"ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder), "LC_ALL": "C.UTF-8"},
        ),
        Tool(
            "pyinfra",
            [str(bin_ / "pyinfra"), "-y", "inventory.py", "deploy.py"],
            UNITS[-1],
            {"PYTHONWARNINGS": "ignore"},
        ),
        Tool("ssh", host.ssh_argv("systemctl", "show", *UNITS), "Id=" + UNITS[-1]),
    ]


def measure(rounds: int) -> dict[str, Any]:
    """Run every tool ``rounds`` times in turn after one unmeasured round, and return the document."""
    check_machine()
    reap()
    with tempfile.TemporaryDirectory(prefix="opsctl-bench-") as text:
        folder = Path(text)
        lab = Lab.open(folder / "lab", owner=os.getpid())
        login = SeedFile(LOGIN.read_text() if LOGIN.exists() else "")
        try:
            own = prepare(lab.up("own", HostSpec(files={str(LOGIN): login})), folder / "own")
            # Ansible keeps one Python per task however the login is, and takes a minute: once is enough.
            bare = [tool for tool in prepare(lab.up("bare"), folder / "bare") if tool.name != "ansible"]
            turns = [(tool, folder / "own") for tool in own] + [(tool, folder / "bare") for tool in bare]
            for number in range(rounds + 1):
                for tool, place in turns[number % len(turns) :] + turns[: number % len(turns)]:
                    tool.run(place)
        finally:
            lab.down()
    for tool in (*own, *bare):
        del tool.walls[0], tool.cpus[0]
    rows = table(own, "as on this machine", BOUNDS) + table(bare, "bare", {})
    return {
        "what": f"{len(UNITS)} unit checks, whole process, median of {rounds} interleaved rounds after a first",
        "environment": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()},
        "rows": rows,
        "held": all(row["held"] for row in rows),
    }


def table(tools: list[Tool], login: str, bounds: dict[str, float]) -> list[dict[str, Any]]:
    """Return the figures of one host with their bounds."""
    ours = statistics.median(tools[0].walls)
    ours_cpu = statistics.median(tools[0].cpus)
    rows = []
    for tool in tools:
        wall = statistics.median(tool.walls)
        ratio, bound = wall / ours, bounds.get(tool.name)
        rows.append(
            {
                "tool": tool.name,
                "login": login,
                "wall_s": {"median": wall, "min": min(tool.walls), "max": max(tool.walls)},
                "cpu_s": statistics.median(tool.cpus),
                "times_opsctl": ratio,
                "times_opsctl_cpu": statistics.median(tool.cpus) / ours_cpu,
                "bound": bound,
                "held": bound is None or ratio >= bound,
            },
        )
    return rows


def print_table(said: dict[str, Any]) -> None:
    """Print the document for a person."""
    print(f"{said['what']} ({said['environment']['cpus']} cores, load {said['environment']['load']:.1f})")
    print(f"{'':9}{'login shell':20}{'wall s':>8}{'min':>8}{'max':>8}{'cpu s':>8}{'× opsctl':>10}{'bound':>8}")
    for row in said["rows"]:
        wall = row["wall_s"]
        bound = f"≥ {row['bound']:g}" if row["bound"] else "–"
        verdict = "" if row["held"] else "  MISSED"
        print(
            f"{row['tool']:9}{row['login']:20}{wall['median']:8.2f}{wall['min']:8.2f}{wall['max']:8.2f}{row['cpu_s']:8.2f}"
            f"{row['times_opsctl']:10.2f}{bound:>8}{verdict}",
        )


def main() -> None:
    """Measure and print; exit 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    said = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(said, indent=2))
    else:
        print_table(said)
    sys.exit(0 if said["held"] else 1)


if __name__ == "__main__":
    main()
