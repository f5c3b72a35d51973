"""Kill, and pause past its lease, the controller at every strike point of a campaign, or at random instants.

A strike point is the instant just before or just after a commit to the journal or a mutation of the host
(``opsctl/strike_points.py``). After each strike the guard alone must bring production back; a paused controller
then wakes up, and must change nothing. Killed runs are resumed, and must complete.

    python benchmarks/chaos.py --strike-points
    python benchmarks/chaos.py --runs 60 --seed 7

Exit status 1 when production was lost, a stale mutation took effect, a journal entry was lost, a resume did not
complete, or a restore took longer than the bound. Needs root: it boots lab hosts (``--jobs`` of them).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opsctl.lab.hosts import LabHost
from opsctl.lab.lab import Lab
from tests.faults.bench import BOUND, LOOK_EVERY, PROFILER, Bench, Controller, standin, until

WHOLE = 240.0
"""The longest that a campaign may take on a busy machine."""


@dataclass(frozen=True)
class Strike:
    """What is done to one run: at a strike point (``at`` is its number), or after so many seconds."""

    mode: str
    at: int = 0
    after: float = 0.0
    edge: str = ""


@dataclass
class Seen:
    """What came of it."""

    strike: Strike
    reached: bool = False
    restore_seconds: float | None = None
    lost: bool = False
    stale: list[str] = field(default_factory=list)
    journal_lost: int = 0
    resumed: bool | None = None
    trouble: str = ""


class Chaos:
    """A few lab hosts, each struck again and again."""

    def __init__(self, lab: Lab, folder: Path, jobs: int, *, resume_every: int) -> None:
        self.folder = folder
        self.resume_every = resume_every
        self.hosts: SimpleQueue[LabHost] = SimpleQueue()
        for host in lab.up_all([f"chaos{number}" for number in range(jobs)]):
            Bench.build(host, folder / host.name, standin(load_seconds=1.0))
            self.hosts.put(host)
        self.count = 0

    @contextmanager
    def desk(self) -> Iterator[Bench]:
        """Take a host that is at rest, and a fresh desk."""
        host = self.hosts.get()
        self.count += 1
        bench = Bench(host, self.folder / f"run{self.count}", standin(load_seconds=1.0))
        bench.folder.mkdir()
        try:
            until(bench.at_rest, BOUND, f"{host.name} at rest", every=LOOK_EVERY)
            yield bench
        finally:
            self.hosts.put(host)

    def reference(self) -> tuple[list[str], float]:
        """Carry out an undisturbed campaign; return its strike points by name, and its seconds."""
        with self.desk() as bench:
            began = time.monotonic()
            controller = bench.run(OPSCTL_STRIKE_LOG=str(bench.folder / "edges"))
            code = controller.wait(WHOLE)
            if code != 0:
                raise SystemExit(f"the undisturbed campaign ended with {code}:\n{controller.tail()}")
            return edges_of(bench), time.monotonic() - began

    def strike(self, strike: Strike) -> Seen:
        """Carry out one campaign, strike it, and look at what comes of it."""
        seen = Seen(strike)
        with self.desk() as bench:
            try:
                self._strike(bench, strike, seen)
            except AssertionError as error:
                seen.lost = seen.lost or not bench.at_rest()
                seen.trouble = str(error)[-1500:]
        return seen

    def _strike(self, bench: Bench, strike: Strike, seen: Seen) -> None:
        log = {"OPSCTL_STRIKE_LOG": str(bench.folder / "edges")}
        order = {"OPSCTL_STRIKE": f"{strike.at}:{strike.mode}"} if strike.at else {}
        controller = bench.run(**log, **order)
        try:
            self._await_strike(controller, strike, seen)
            if not seen.reached:
                return
            breaches = len(bench.breaches())
            seen.restore_seconds = self._await_rest(bench, controller, seen)
            if strike.mode == "pause":
                wake(bench, controller, seen)
            seen.journal_lost = journal_lost(bench)
            if len(bench.breaches()) > breaches:
                seen.stale.append("two servers wanted the same GPUs")
        finally:
            controller.end()
        if strike.mode == "kill" and (strike.at + self.count) % self.resume_every == 0 and has_run(bench):
            seen.resumed = resume(bench)

    def _await_strike(self, controller: Controller, strike: Strike, seen: Seen) -> None:
        if strike.at:
            until(
                lambda: controller.frozen or controller.process.poll() is not None,
                WHOLE,
                "the strike point",
                controller.tail,
            )
            seen.reached = controller.frozen or controller.process.returncode == -signal.SIGKILL
            return
        time.sleep(strike.after)
        seen.reached = controller.process.poll() is None
        controller.signal(signal.SIGKILL if strike.mode == "kill" else signal.SIGSTOP)

    def _await_rest(self, bench: Bench, controller: Controller, seen: Seen) -> float:
        try:
            return until(
                bench.at_rest,
                BOUND,
                "production's return",
                lambda: f"{bench.lease()}\n{controller.tail()}",
                every=LOOK_EVERY,
            )
        except AssertionError:
            seen.lost = True
            raise


def wake(bench: Bench, controller: Controller, seen: Seen) -> None:
    """Let a paused controller go on after the guard has restored: it must change nothing that it did not find free."""
    held_before = bench.lease().get("token", "0")
    before = invocation(bench)
    controller.thaw()
    controller.wait(WHOLE)
    if bench.lease().get("token", "0") != held_before:
        return  # it had not armed yet, and carried out its campaign under a lease of its own
    if invocation(bench) != before:
        seen.stale.append(f"production was started anew: {before} -> {invocation(bench)}")
    if not bench.answers():
        seen.lost = True
        seen.stale.append("production does not answer after the controller woke up")
    if bench.active(PROFILER):
        seen.stale.append("the variant runs after the controller woke up")


def invocation(bench: Bench) -> str:
    """Return which start of production runs."""
    return bench.host.systemctl("show", "-p", "InvocationID", "--value", bench.production.service_name)


def edges_of(bench: Bench) -> list[str]:
    """Return the names of the strike points that a controller passed."""
    path = bench.folder / "edges"
    return [line.partition(" ")[2] for line in path.read_text().splitlines()] if path.exists() else []


def journal_lost(bench: Bench) -> int:
    """Return how many entries the controller was told are committed, and the journal does not hold."""
    passed = edges_of(bench)
    path = bench.state / "opsctl" / "journal.sqlite"
    if not path.exists():
        return sum(name.startswith("journal ") and name.endswith(" after") for name in passed)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
        sound = bool(journal.execute("PRAGMA integrity_check").fetchone()[0] == "ok")
        events, begun, ended, steps = (
            int(journal.execute(f"SELECT count(*) FROM {what}").fetchone()[0])  # noqa: S608 - the four texts below
            for what in ("events", "mutations", "mutations WHERE ended IS NOT NULL", "steps WHERE state='verified'")
        )
    journal.close()
    mutations = {match[1] for name in passed if (match := re.fullmatch(r"mutation (.+) before", name))}
    said = (
        (passed.count("journal event after"), events),
        (sum(passed.count(f"journal {action} begun after") for action in mutations), begun),
        (sum(passed.count(f"journal {action} ended after") for action in mutations), ended),
        (passed.count("journal step verified after"), steps),
    )
    return (0 if sound else 1) + sum(max(0, wanted - found) for wanted, found in said)


def has_run(bench: Bench) -> bool:
    """Whether the journal knows of a run that did not end verified."""
    path = bench.state / "opsctl" / "journal.sqlite"
    if not path.exists():
        return False
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
        there = journal.execute("SELECT count(*) FROM sqlite_master WHERE name='runs'").fetchone()[0]
        rows = journal.execute("SELECT outcome FROM runs").fetchall() if there else []
    journal.close()
    return bool(rows) and rows[0][0] != "verified"


def resume(bench: Bench) -> bool:
    """Resume the run; return whether it completed, verified."""
    controller = bench.start("resume", "--plain")
    try:
        return controller.wait(WHOLE) == 0 and bench.at_rest()
    finally:
        controller.end()


def report(seen: list[Seen], *, as_json: bool, took: float) -> int:
    """Print what was seen, with the bounds beside it. Returns the exit status."""
    reached = [one for one in seen if one.reached]
    times = sorted(one.restore_seconds for one in reached if one.restore_seconds is not None)
    resumed = [one.resumed for one in reached if one.resumed is not None]
    figures: dict[str, Any] = {
        "strikes": len(seen),
        "reached": len(reached),
        "production_lost": sum(one.lost for one in seen),
        "stale_mutations": sum(len(one.stale) for one in seen),
        "journal_entries_lost": sum(one.journal_lost for one in seen),
        "restore_seconds": {
            name: quantile(times, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "restore_bound": BOUND,
        "resumes": len(resumed),
        "resumes_completed": sum(resumed),
        "unexplained": sum(bool(one.trouble) for one in seen),
        "took_seconds": round(took),
    }
    bad = [one for one in seen if one.lost or one.stale or one.journal_lost or one.resumed is False or one.trouble]
    good = not bad and (not times or times[-1] <= BOUND) and bool(reached)
    if as_json:
        print(json.dumps({**figures, "ok": good, "bad": [asdict(one) for one in bad]}, indent=2))
        return 0 if good else 1
    print(f"strikes {len(seen)}, of which {len(reached)} met a running campaign; {took:.0f} s")
    print(f"production lost       {figures['production_lost']:4}   (bound 0)")
    print(f"stale mutations       {figures['stale_mutations']:4}   (bound 0)")
    print(f"journal entries lost  {figures['journal_entries_lost']:4}   (bound 0)")
    p = figures["restore_seconds"]
    bound = f"(bound {BOUND:g} s: ttl + stop + load + 30)"
    print(f"time to restore       p50 {p['p50']} s, p99 {p['p99']} s, max {p['max']} s   {bound}")
    print(f"resume completed      {figures['resumes_completed']} of {figures['resumes']}   (bound: all)")
    for one in bad:
        print(f"BAD {one.strike}: lost={one.lost} stale={one.stale} journal={one.journal_lost} resumed={one.resumed}")
        print(one.trouble)
    return 0 if good else 1


def quantile(ordered: list[float], share: float) -> float | None:
    """Return the smallest value that so large a share does not exceed (nearest rank); None without values."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(len(ordered) * share) - 1)], 1)


def strikes_of(arguments: argparse.Namespace, edges: list[str], seconds: float) -> list[Strike]:
    """Return what is to be done."""
    modes = ["kill", "pause"] if arguments.mode == "both" else [arguments.mode]
    if arguments.strike_points:
        numbers = range(1 + arguments.offset, len(edges) + 1, arguments.every)
        return [Strike(mode, at=number, edge=edges[number - 1]) for mode in modes for number in numbers]
    chance = random.Random(arguments.seed)
    return [Strike(chance.choice(modes), after=chance.uniform(0.5, seconds)) for _ in range(arguments.runs)]


def main() -> int:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--strike-points", action="store_true", help="every strike point, killed and paused")
    what.add_argument("--runs", type=int, help="so many random instants")
    parser.add_argument("--seed", type=int, default=1, help="of the random instants")
    parser.add_argument("--mode", choices=["kill", "pause", "both"], default="both")
    parser.add_argument("--every", type=int, default=1, help="only every K-th strike point")
    parser.add_argument("--offset", type=int, default=0, help="leave out the first strike points")
    parser.add_argument("--jobs", type=int, default=4, help="lab hosts at work at once")
    parser.add_argument("--resume-every", type=int, default=1, help="resume only every K-th killed run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="opsctl-chaos-"))
    lab = Lab.open(folder / "lab", owner=os.getpid())
    began = time.monotonic()
    try:
        chaos = Chaos(lab, folder, arguments.jobs, resume_every=arguments.resume_every)
        edges, seconds = chaos.reference()
        strikes = strikes_of(arguments, edges, seconds)
        print(
            f"{len(edges)} strike points in {seconds:.0f} s; {len(strikes)} strikes on {arguments.jobs} hosts",
            file=sys.stderr,
        )
        with ThreadPoolExecutor(arguments.jobs) as pool:
            seen = []
            for number, one in enumerate(pool.map(chaos.strike, strikes), 1):
                seen.append(one)
                word = "lost" if one.lost else "stale" if one.stale else one.trouble[:80] or f"{one.restore_seconds} s"
                word += " NOT RESUMED" if one.resumed is False else ""
                print(
                    f"{number}/{len(strikes)} {one.strike.mode} {one.strike.edge or one.strike.after}: {word}",
                    file=sys.stderr,
                )
    finally:
        lab.down()
    return report(seen, as_json=arguments.json, took=time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
