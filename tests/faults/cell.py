"""One cell of the fault table: freeze, strike, and then what must be so, whatever the fault was."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from zlib import crc32

from opsctl.host.outage import BUDGET
from tests.faults.bench import LOOK_EVERY, Bench, Controller, short, stepped_clock, until
from tests.faults.table import KILLED, NOT_VERIFIED, Fault, StateOf

_SERVES = re.compile(
    r"production \S+ on \S+: (serving|back and verified|is back and verified|not touched)|nothing was touched"
)


@dataclass(frozen=True)
class Outcome:
    """What was seen in a cell."""

    state: str
    fault: str
    exit: int
    seconds: float
    """From the strike until production answered and nobody held the host."""
    bound: float
    restored_by: str
    last_line: str


def run_cell(bench: Bench, state: StateOf, fault: Fault) -> Outcome:
    """Carry out one cell. Raises AssertionError where something is not as promised."""
    bench.playbook = short("variant" if state.name.startswith("stage on the variant") else "")
    controller = bench.frozen_at(state.edge, **(stepped_clock(bench.folder) if fault.clock else {}))
    try:
        proven = bench.verified_steps()
        began = time.monotonic()
        fault.strike(bench, controller)
        return await_rest(bench, controller, state, fault, began=began, proven=proven)
    finally:
        controller.end()
        bench.host.heal()


def await_rest(
    bench: Bench, controller: Controller, state: StateOf, fault: Fault, *, began: float, proven: set[str]
) -> Outcome:
    """Wait until all is at rest, and hold what is seen against the promise."""
    allowed = fault.armed if state.armed else fault.unarmed
    allowed |= fault.untouched if state.untouched else frozenset()
    # A controller without a link goes on looking for its host: for a while, or without a lease for the whole budget.
    code = controller.wait(fault.bound + (60 if state.armed else BUDGET + 60))
    serving_at_exit = bench.answers()
    left = max(1.0, fault.bound - (time.monotonic() - began))
    until(bench.at_rest, left, "production's return", lambda: _told(bench, controller), every=LOOK_EVERY)
    seconds = time.monotonic() - began
    lease = bench.lease()
    assert code in allowed, f"exit {code}, wanted one of {sorted(allowed)}\n{controller.tail()}"
    check_words(code, controller, serving=serving_at_exit)
    assert bench.breaches() == [], "two servers wanted the same GPUs"
    assert not bench.active("opsctl-guard") or lease.get("state") == "closed"
    missing = proven - bench.verified_steps()
    assert not missing, f"lost from the journal: {missing}"
    by = lease.get("closed_by", "")
    restored_by = "nobody had to" if not by else "guard" if by == "guard" else "controller"
    return Outcome(state.name, fault.name, code, round(seconds, 1), fault.bound, restored_by, controller.last_line)


def _told(bench: Bench, controller: Controller) -> str:
    return f"{bench.lease()}\n{controller.tail()}"


def check_words(code: int, controller: Controller, *, serving: bool) -> None:
    """Whether the exit status, and the last words, are true: production serves where they say so."""
    if code == KILLED:
        return
    text = controller.text + controller.err.read_text()
    if code == NOT_VERIFIED:
        assert re.search(r"NOT VERIFIED|leaving now", text), controller.tail()
        assert re.search(r"opsctl rollback|the guard|Nothing was touched", text), controller.tail()
        return
    assert serving, f"exit {code} says that production serves; it does not\n{controller.tail()}"
    assert "NOT VERIFIED" not in controller.text, controller.tail()
    assert _SERVES.search(controller.last_line), controller.tail()


def keep(outcome: Outcome) -> None:
    """Write an outcome down for docs/faults.md, where OPSCTL_FAULTS_OUT says."""
    folder = os.environ.get("OPSCTL_FAULTS_OUT")
    if folder:
        name = f"{outcome.state} {outcome.fault}".lower()
        slug = re.sub(r"[^a-z0-9]+", "-", name)  # +1 day and -1 day have the same
        Path(folder, f"{slug}-{crc32(name.encode()):08x}.json").write_text(json.dumps(asdict(outcome)))
