"""What a schedule's service runs: say what was missed, take the lock (or skip, or queue), become ``opsctl run``."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

from opsctl.deadline import Deadline
from opsctl.quantities import format_duration
from opsctl.schedule import controller
from opsctl.schedule.ledger import Entry, Ledger
from opsctl.schedule.plans import Schedule

POLL = 2.0
SIGNS = frozenset({"added", "started", "skipped", "waited", "ended"})
"""Events that show that this machine and the timer were there. A start that fell into a run is not missed."""


def fire(name: str, ledger: Ledger, *, become: Callable[[list[str]], None] | None = None) -> str:
    """Carry one start out. Returns why it was skipped; does not return where the run begins.

    ``become`` replaces this process by a program (``os.execv``). The lock is held by this process' open file,
    and so by the run that it becomes, until that ends, however it ends.
    """
    schedule = ledger.load(name)
    gone = missed(schedule, ledger.entries(name), datetime.now(UTC))
    if gone:
        text = missed_in_words(gone)
        ledger.note(name, "missed", text, missed=tuple(gone))
        print(text, flush=True)
    lock = os.open(ledger.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    holder = _take(lock, schedule, name, ledger)
    if holder is not None:
        os.close(lock)
        return holder
    os.ftruncate(lock, 0)
    os.pwrite(lock, name.encode(), 0)
    os.set_inheritable(lock, True)
    ledger.note(name, "started", f"opsctl run {schedule.playbook}")
    argv = schedule.run_argv(ledger.playbook_of(schedule))
    (become or _become)(argv)
    return ""


def _become(argv: list[str]) -> None:
    os.execv(argv[0], argv)  # noqa: S606 - no shell is the point


def _take(lock: int, schedule: Schedule, name: str, ledger: Ledger) -> str | None:
    """Take the lock, at once or after a wait; return why not, noted, where another scheduled run keeps it."""
    if _locked(lock):
        return None
    holder = os.pread(lock, 200, 0).decode(errors="replace") or "another schedule"
    if schedule.when_busy == "skip":
        text = f"skipped: {holder} is still running"
        ledger.note(name, "skipped", text)
        return text
    deadline = Deadline(schedule.queue_limit, f"wait of {name} for {holder}")
    ledger.note(name, "waited", f"waits for {holder}, at most {format_duration(schedule.queue_limit)}")
    while not deadline.expired:
        time.sleep(min(POLL, deadline.remaining()))
        if _locked(lock):
            return None
    text = f"skipped: {holder} was still running after {format_duration(schedule.queue_limit)}"
    ledger.note(name, "skipped", text)
    return text


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ended(name: str, ledger: Ledger, environment: dict[str, str]) -> Entry | None:
    """Write down how a run ended, from what systemd tells ExecStopPost=. A start that was skipped ended already."""
    entries = ledger.entries(name)
    if entries and entries[-1].event == "skipped":
        return None
    status, result = environment.get("EXIT_STATUS", ""), environment.get("SERVICE_RESULT", "unknown")
    code = int(status) if status.isdigit() else None
    message = f"exit status {code}" if code is not None else f"ended by {status or result}"
    return ledger.note(name, "ended", message, exit_code=code)


def missed(schedule: Schedule, entries: list[Entry], now: datetime) -> list[str]:
    """Return when it should have started since the last sign of the timer, and did not (calendar schedules only).

    The start that fires now, delayed at random or caught up, is not one of them.
    """
    signs = [entry.time for entry in entries if entry.event in SIGNS]
    if not schedule.calendar or not signs:
        return []
    wanted = controller.starts_between(schedule.calendar, datetime.fromisoformat(signs[-1]), now)
    # The last of them is the reason for this very start, whether on time or caught up.
    return wanted[:-1]


def missed_in_words(gone: list[str]) -> str:
    """Return one line about missed starts."""
    more = " or more" if len(gone) >= controller.MOST_MISSED - 1 else ""
    starts = "start" if len(gone) == 1 else "starts"
    return f"missed {len(gone)}{more} {starts} since {gone[0]}: the machine or its timer was off"
