"""Run seeded schedules: ``python -m tests.simulation --schedules 10000 --seed 1 --json``.

Exit status 1 when an invariant did not hold; the schedule is then shrunk to the faults that it takes, and its
operations are printed. ``--break fence`` leaves the guard's sessions alive: the simulation must find what that does.
"""

# The clock is virtual before anything of opsctl is imported.
from __future__ import annotations

from tests.simulation import virtual_time

# isort: split
import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.simulation.controller import TERMS, campaign
from tests.simulation.shell import GuardShell
from tests.simulation.world import PRODUCTION, Fault, Killed, Violation, World

_KINDS = {
    "controller": ("kill", "pause", "pause", "link", "reboot", "request lost", "reply lost"),
    "guard": ("kill", "pause"),
}
_SECONDS = (1, 5, 20, 55, 62, 65, 70, 90, 200)


class Simulation:
    """Two shells with the guard, which serve schedule after schedule."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self._shells = [GuardShell(), GuardShell()]
        self.operations = 0

    def run(self, seed: int, faults: Sequence[Fault]) -> tuple[str, list[str]]:
        """Carry out one schedule; return the violation, "" for none, and what happened."""
        random.seed(seed)
        struck = tuple(fault for fault in faults if fault.actor != "production")
        world = World(self._shells[0], self._shells[1], struck, self._broken)
        world.units[PRODUCTION].starts_to_fail = sum(fault.at for fault in faults if fault.actor == "production")
        world.arm(TERMS)
        virtual_time.now, virtual_time.sleep = lambda: world.t, world.advance
        try:
            try:
                campaign(world)
            except Killed:
                world.trace.append(f"{world.t:9.2f} controller is killed")
            world.finish()
        except Violation as violation:
            self.close()
            self._shells = [GuardShell(), GuardShell()]
            return str(violation), world.trace
        finally:
            self.operations += len(world.trace)
        return "", world.trace

    def shrink(self, seed: int, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Return the fewest faults of a schedule that still break an invariant."""
        for fault in faults:
            fewer = tuple(one for one in faults if one != fault)
            if self.run(seed, fewer)[0]:
                return self.shrink(seed, fewer)
        return faults

    def close(self) -> None:
        """End the shells."""
        for shell in self._shells:
            shell.close()


def draw(seed: int) -> tuple[Fault, ...]:
    """Return a schedule: one to four faults, each at a counted operation of its actor."""
    dice = random.Random(seed)
    faults = []
    for _ in range(dice.randint(1, 4)):
        actor = dice.choice(("controller", "controller", "guard", "production"))
        if actor == "production":
            faults.append(Fault(actor, dice.randint(1, 4), "fails to start"))
            continue
        kind = dice.choice(_KINDS[actor])
        seconds = dice.choice(_SECONDS) if kind in {"pause", "link"} else 0
        faults.append(Fault(actor, dice.randint(1, 90), kind, seconds))
    return tuple(faults)


def main() -> int:
    """Run schedules, spread over the cores; print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--break", dest="broken", default="", choices=("", "fence"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = virtual_time.real_seconds()
    results = _spread(options) if options.jobs > 1 else [_some(options)]
    document = {
        "schedules": options.schedules, "seed": options.seed,
        "seconds": round(virtual_time.real_seconds() - began, 1),
        "operations": sum(result["operations"] for result in results),
        "violations": [violation for result in results for violation in result["violations"]],
    }  # fmt: skip
    if options.json:
        print(json.dumps(document))
    else:
        _tell(document)
    return 1 if document["violations"] else 0


def _some(options: argparse.Namespace) -> dict[str, Any]:
    simulation = Simulation(options.broken)
    violations: list[dict[str, object]] = []
    try:
        for seed in range(options.seed, options.seed + options.schedules):
            faults = draw(seed)
            if simulation.run(seed, faults)[0] and len(violations) < 5:
                least = simulation.shrink(seed, faults)
                violation, trace = simulation.run(seed, least)
                faults_told = [asdict(fault) for fault in least]
                violations.append({"seed": seed, "violation": violation, "faults": faults_told, "trace": trace})
    finally:
        simulation.close()
    return {"operations": simulation.operations, "violations": violations}


def _spread(options: argparse.Namespace) -> list[dict[str, Any]]:
    share = -(-options.schedules // options.jobs)
    running = []
    for first in range(0, options.schedules, share):
        count = min(share, options.schedules - first)
        argv = ["--schedules", str(count), "--seed", str(options.seed + first), "--jobs", "1", "--json"]
        argv += ["--break", options.broken] if options.broken else []
        command = [sys.executable, "-m", "tests.simulation", *argv]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return [json.loads(process.communicate()[0]) for process in running]


def _tell(document: dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in document.items() if key != "violations"))
    print(f"{len(document['violations'])} violations")
    for one in document["violations"]:
        print(f"\nseed {one['seed']}: {one['violation']}")
        print("\n".join(f"  {fault}" for fault in one["faults"]))
        print("\n".join(f"    {line}" for line in one["trace"]))


if __name__ == "__main__":
    sys.exit(main())
