"""The fault table's axes: every state of a campaign, as the edge at which it is entered; every fault, as what is done.

A fault gets the controller frozen in the state and leaves it in whatever condition the fault means. What must then be
so is the same in every cell (``cell.py``); which exit statuses are true depends on the fault and the state.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.faults.bench import BOUND, CAMPAIGN, LOAD, LOOK_EVERY, PRODUCTION, STOP, TTL, Bench, Controller, fill, until

VERIFIED, FAILED, UNFIT, NOT_VERIFIED, HELD, INTERRUPTED, KILLED = 0, 1, 2, 3, 4, 130, -9


@dataclass(frozen=True)
class StateOf:
    """A state of the campaign. ``edge`` is where the controller is frozen; ``armed`` whether a lease is held then."""

    name: str
    edge: str
    armed: bool = True
    untouched: bool = False
    """Whether the lease was armed a moment ago, and nothing else was done."""
    down: bool = False
    """Whether production is down then."""


STATES = (
    StateOf("before arm", "mutation install guard before#1", armed=False),
    StateOf("armed", "mutation arm after#1", untouched=True),
    StateOf("stage on production (command)", "mutation start stage after#1"),
    # The last instant before production goes down: past every look at the lease, so that here the fence alone counts.
    StateOf("stopping production", f"bus stop {PRODUCTION}.service before#1"),
    StateOf("stopped", "mutation stop after#1", down=True),
    StateOf("stage on free GPUs (command)", "mutation start stage after#2", down=True),
    StateOf("loading the variant", "mutation start after#1", down=True),
    StateOf("verifying the variant", "journal load ended before#1", down=True),
    StateOf("stage on the variant (serving-benchmark)", "mutation start stage after#3", down=True),
    StateOf("stage on the variant (profile)", "mutation start stage after#4", down=True),
    StateOf("restoring", "mutation start before#2", down=True),
    StateOf("verifying the restore", "journal load ended before#2"),
)


@dataclass(frozen=True)
class Fault:
    """A fault: what is done, and how a controller may then end. ``exits`` by whether the host was armed."""

    name: str
    strike: Callable[[Bench, Controller], None]
    unarmed: frozenset[int]
    armed: frozenset[int]
    untouched: frozenset[int] = frozenset()
    """Also true where the host was armed and production not yet touched."""
    bound: float = BOUND
    """Seconds from the strike within which production answers, and nobody holds the host."""
    clock: bool = False
    """The controller runs under libfaketime."""
    small_disk: bool = False
    """The controller's state lies on a small disk of its own."""


def kill(_: Bench, controller: Controller) -> None:
    """SIGKILL: nothing of the controller is left."""
    controller.signal(signal.SIGKILL)


def sleep_past_the_lease(bench: Bench, controller: Controller) -> None:
    """Stay frozen until the guard has acted (before arming: for as long as a lease would last), then go on."""
    if bench.lease().get("state", "none") == "none":
        time.sleep(TTL / 3)
    else:
        until(bench.at_rest, BOUND, "the guard's restore", lambda: str(bench.lease()), every=LOOK_EVERY)
    controller.thaw()


def interrupt(_: Bench, controller: Controller) -> None:
    """SIGINT once: stop, restore, verify."""
    controller.signal(signal.SIGINT)
    controller.thaw()


def interrupt_twice(_: Bench, controller: Controller) -> None:
    """SIGINT twice: leave at once. The second is sent when the first has been heard."""
    controller.signal(signal.SIGINT)
    controller.thaw()
    until(lambda: "SIGINT: stopping" in controller.err.read_text(), 30, "word of the first SIGINT", controller.tail)
    controller.signal(signal.SIGINT)


def cut_and_heal(bench: Bench, controller: Controller) -> None:
    """The cable is pulled for longer than the lease, and put back."""
    bench.host.cut()
    controller.thaw()
    armed = bench.lease().get("state", "none") != "none"
    if armed:
        until(bench.at_rest, BOUND, "the guard's restore", lambda: str(bench.lease()), every=LOOK_EVERY)
    else:
        time.sleep(TTL / 3)
    bench.host.heal()


def cut_for_good(bench: Bench, controller: Controller) -> None:
    """The cable is pulled and stays so."""
    bench.host.cut()
    controller.thaw()


def power_cut(bench: Bench, controller: Controller) -> None:
    """The host loses its power and boots: all processes gone, the disk kept, another boot_id."""
    bench.host.off()
    controller.thaw()
    bench.host.boot()


def step_clock(step: str) -> Callable[[Bench, Controller], None]:
    """Return a fault that steps the controller's wall clock."""

    def strike(bench: Bench, controller: Controller) -> None:
        (bench.folder / "clock").write_text(f"{step}\n")
        controller.thaw()

    return strike


def fill_the_host(bench: Bench, controller: Controller) -> None:
    """Not a byte is free on the host's disk any more."""
    bench.host.fill_disk()
    controller.thaw()


def fill_the_controller(bench: Bench, controller: Controller) -> None:
    """Not a byte is free on the disk that holds the journal."""
    fill(bench.state)
    controller.thaw()


def second_controller(bench: Bench, controller: Controller) -> None:
    """Somebody else starts a campaign on the same host: refused with exit 4 once the host is held."""
    other = Bench(bench.host, bench.folder / "other", bench.production, bench.playbook)
    other.folder.mkdir()
    if bench.lease().get("state", "none") == "none":
        late = other.frozen_at("mutation arm after#1")  # it takes the host first
        controller.thaw()
        controller.wait(60)
        late.thaw()
        assert late.wait(CAMPAIGN * 2) == VERIFIED, late.tail()
        return
    refused = other.run()
    # The first stays frozen meanwhile, lest it be at its end before the second has looked; but not for a lease's time.
    with suppress(subprocess.TimeoutExpired):
        refused.process.wait(TTL / 2)
    controller.thaw()
    assert refused.wait(60) == HELD, refused.tail()
    assert "is held by" in refused.tail()


FAULTS = (
    Fault("controller SIGKILL", kill, frozenset({KILLED}), frozenset({KILLED})),
    Fault(
        "controller SIGSTOP past the lease, CONT", sleep_past_the_lease, frozenset({VERIFIED}), frozenset({FAILED}),
        bound=BOUND + CAMPAIGN,
    ),
    Fault("SIGINT once", interrupt, frozenset({INTERRUPTED}), frozenset({INTERRUPTED}), bound=STOP * 2 + LOAD + 60),
    Fault("SIGINT twice", interrupt_twice, frozenset({NOT_VERIFIED}), frozenset({NOT_VERIFIED})),
    Fault(
        "link cut past the lease, healed", cut_and_heal, frozenset({VERIFIED, FAILED, UNFIT}), frozenset({FAILED}),
        bound=BOUND + CAMPAIGN,
    ),
    Fault(
        "link cut for good", cut_for_good, frozenset({FAILED, UNFIT}), frozenset({NOT_VERIFIED}),
    ),
    Fault(
        "host power cut and boot", power_cut, frozenset({FAILED, UNFIT, NOT_VERIFIED}),
        frozenset({FAILED, NOT_VERIFIED}),
    ),
    Fault(
        "controller's clock +1 day", step_clock("+1d"), frozenset({VERIFIED}), frozenset({VERIFIED}),
        bound=BOUND + CAMPAIGN, clock=True,
    ),
    Fault(
        "controller's clock -1 day", step_clock("-1d"), frozenset({VERIFIED}), frozenset({VERIFIED}),
        bound=BOUND + CAMPAIGN, clock=True,
    ),
    Fault(
        "disk full on the host", fill_the_host, frozenset({VERIFIED, FAILED, UNFIT}),
        frozenset({VERIFIED, FAILED, NOT_VERIFIED}), bound=BOUND + CAMPAIGN,
    ),
    Fault(
        "disk full at the controller", fill_the_controller, frozenset({FAILED, UNFIT}), frozenset({VERIFIED, FAILED}),
        untouched=frozenset({UNFIT}), bound=BOUND + CAMPAIGN, small_disk=True,
    ),
    Fault(
        "a second controller", second_controller, frozenset({HELD}), frozenset({VERIFIED}), bound=BOUND + 2 * CAMPAIGN,
    ),
)  # fmt: skip

SENSELESS = {
    (
        "before arm",
        "host power cut and boot",
    ): "production was not borrowed; it is disabled here, so nothing but a person brings it up",
}
"""Cells that make no sense, with the reason."""
