"""What a swap there and back costs production beyond the servers' own times: opsctl beside a shell script.

    python benchmarks/swap_overhead.py [--json] [--rounds N]     exit 1 when a bound is missed; needs root on Linux

On one lab host production is swapped for a variant and back. Downtime counts from the moment before the stop to the
moment when the tool knows that production serves again, less the one step between (opsctl's playbooks have one:
here /bin/true), by the journal's own times. The servers' own part is
measured in the same round by a program *on* the host that does the same and looks a hundred times a second at the
GPUs' locks and at completions: two stops, two loads (3 s each), and twice the 3 s that a stand-in nvidia-smi takes
to show memory free. Overhead is the difference. The three take turns, round after round.

- opsctl: ``opsctl run`` over SSH: drain, stop, gate (three samples), start, readiness (three completions), restore
- script: on the host, ``systemctl``, ``nvidia-smi`` and ``curl``, each looked at every second
- floor:  on the host, every 10 ms; no gate that waits for stability, one completion
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
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import host_entry
from opsctl.lab.lab import Lab, check_machine, reap
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import ENVIRONMENT, Standin, install

BOUND = 1.0
LOAD, RELEASE = 3.0, 3.0
LIMIT = 300.0
PRODUCTION = Standin(load_seconds=LOAD, service=("TimeoutStopSec=60", "LimitMEMLOCK=infinity"))
VARIANT = Standin(unit=f"{PRODUCTION.unit}-variant", load_seconds=LOAD, enabled=False)

STEP = {"command": {"argv": ["/bin/true"]}}
PLAYBOOK = {
    "name": "swap-overhead",
    "hosts": "gpu1",
    "phases": [{"name": "away", "serve": f"{PRODUCTION.unit}-derived", "steps": [STEP]}],
}

FLOOR = """
import json, subprocess, sys, time, urllib.request
from opsctl.lab.standin import gpus

production, variant = sys.argv[1:3]
body = json.dumps({"model": "kimi-k2.5", "prompt": "a", "max_tokens": 1}).encode()


def serves():
    request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"content-type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request, timeout=5))["usage"]["completion_tokens"] > 0
    except OSError:
        return False


def until(ready):
    while not ready():
        time.sleep(0.01)


def swap(old, new):
    config = gpus.GpuConfig.read()
    subprocess.run(["systemctl", "stop", old], check=True)
    until(lambda: all(gpus.look(index, config) is None for index in range(config.count)))
    subprocess.run(["systemctl", "start", new], check=True)
    until(serves)


began = time.monotonic()
swap(production, variant)
swap(variant, production)
print(time.monotonic() - began)
"""

SCRIPT = """
set -e
ask='{"model": "kimi-k2.5", "prompt": "a", "max_tokens": 1}'
swap() {
  systemctl stop "$1"
  while nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | grep -qv '^0$'; do sleep 1; done
  systemctl start "$2"
  until curl -sf -m 10 http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' -d "$ask" >/dev/null; do
    sleep 1
  done
}
began=$(date +%s.%N)
swap "$1" "$2"
swap "$2" "$1"
echo "$(date +%s.%N) - $began" | awk '{print $1 - $3}'
"""


def on_host(host: LabHost, *argv: str) -> float:
    """Run one of the programs in the host, past network and sshd, and return the seconds it printed."""
    return float(host.exec(*argv, PRODUCTION.service_name, VARIANT.service_name, timeout=LIMIT).stdout.split()[-1])


def opsctl(folder: Path, *arguments: str) -> str:
    """Run opsctl as a whole process and return what it printed. Exits with what it said when it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        sys.exit(
            f"opsctl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return done.stdout


def swap_by_opsctl(folder: Path) -> float:
    """Return production's downtime less the step, as the run's own journal has them."""
    opsctl(folder, "run", "playbook.yml", "-i", "inventory.yml", "--json")
    run = json.loads(opsctl(folder, "status", "--json"))
    (production,) = run["production"]
    (step,) = run["phases"][0]["steps"]
    if not production["verified"]:
        sys.exit("production is not verified after a swap there and back")
    began, ended = (datetime.fromisoformat(step[key]) for key in ("started", "ended"))
    return float(production["downtime_seconds"]) - (ended - began).total_seconds()


def write_files(folder: Path, host: LabHost) -> None:
    """Write the inventory and the playbook."""
    derived = {"role": "variant", "of": PRODUCTION.unit, "args": {"add": ["--async-scheduling"]}}
    production = {
        "url": PRODUCTION.url,
        "model": PRODUCTION.served,
        "tensor-parallel": PRODUCTION.tensor_parallel,
        "readiness": {"limit": "120s", "settle": "1s"},
    }
    inventory = {
        "hosts": {"gpu1": host_entry(host)},
        "services": {PRODUCTION.unit: production, f"{PRODUCTION.unit}-derived": derived},
    }
    (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
    (folder / "playbook.yml").write_text(yaml.safe_dump(PLAYBOOK))


def measure(rounds: int) -> list[dict[str, float]]:
    """Return downtimes of each round, in seconds."""
    check_machine()
    reap()
    seen: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="opsctl-swap-") as name:
        folder = Path(name)
        (folder / "lab").mkdir()
        lab = Lab.open(folder / "lab", owner=os.getpid())
        try:
            host = lab.up("gpu1")
            config = GpuConfig(release_seconds=RELEASE)
            install(host, VARIANT, gpus=config, start=False)
            install(host, PRODUCTION, gpus=config)
            write_files(folder, host)
            host.write_file("/opt/floor.py", FLOOR)
            host.write_file("/opt/script.sh", SCRIPT)
            for number in range(rounds + 1):
                row = {
                    "floor": on_host(host, f"{ENVIRONMENT}/bin/python", "/opt/floor.py"),
                    "opsctl": swap_by_opsctl(folder),
                    "script": on_host(host, "sh", "/opt/script.sh"),
                }
                if number:  # the first round warms caches up, and installs the guard
                    seen.append(row)
        finally:
            lab.down()
    return seen


def judge(seen: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of what each tool adds to the floor of its own round."""
    floors = [row["floor"] for row in seen]
    tools = {}
    for tool in ("opsctl", "script"):
        added = [row[tool] - row["floor"] for row in seen]
        tools[tool] = {"median_s": statistics.median(added), "least_s": min(added), "most_s": max(added)}
    return {
        "overhead": tools,
        "floor": {"median_s": statistics.median(floors), "least_s": min(floors), "most_s": max(floors)},
        "bound_s": BOUND,
        "missed": tools["opsctl"]["median_s"] > BOUND,
        "rounds": seen,
        "environment": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "python": platform.python_version(),
        },
    }


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    result = judge(measure(chosen.rounds))
    if chosen.json:
        print(json.dumps(result, indent=1))
        return int(result["missed"])
    floor = result["floor"]
    spread = f"{floor['least_s']:.2f} to {floor['most_s']:.2f}"
    print(f"servers' own part, there and back: {floor['median_s']:.2f} s ({spread})")
    for tool, figure in result["overhead"].items():
        bound = f"   bound {BOUND:.1f} s" if tool == "opsctl" else ""
        spread = f"{figure['least_s']:.2f} to {figure['most_s']:.2f}"
        print(f"{tool:>8} adds {figure['median_s']:6.2f} s ({spread}, n={len(result['rounds'])}){bound}")
    print("MISSED" if result["missed"] else "met")
    return int(result["missed"])


if __name__ == "__main__":
    sys.exit(main())
