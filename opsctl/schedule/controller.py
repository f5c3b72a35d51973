"""The controller's own systemd, by its own programs: units in, units out, when is the next start."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from opsctl.errors import BusError, DeadlineExceeded, PrivilegeMissing, UnfitError
from opsctl.schedule.ledger import Ledger
from opsctl.schedule.plans import Schedule, unit_texts

Scope = Literal["system", "user"]
LIMIT = 30.0
_BOOTED = Path("/run/systemd/system")
_UNIT_FOLDERS = {"system": Path("/etc/systemd/system")}
_ITERATION = re.compile(r"(?:Next elapse|Iteration #\d+|Iter\. #\d+): (?P<local>.+)|\(in UTC\): (?P<utc>.+)")
MOST_MISSED = 100
"""Missed starts that are listed: a machine that was off for years has missed many."""


@dataclass(frozen=True)
class TimerState:
    """What systemd says of a timer. Times are UTC, ISO 8601; None: never, or not known."""

    loaded: bool
    active: bool
    next: str | None
    last: str | None
    result: str
    """systemd's word for how the service's last run ended."""


def unit_folder(scope: Scope) -> Path:
    """Return where units of a scope are written."""
    if scope == "system":
        return _UNIT_FOLDERS["system"]
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user"


def require_systemd(sign: Path = _BOOTED) -> None:
    """Raise UnfitError where this machine's PID 1 is no systemd (``sign`` is what sd_booted(3) looks for)."""
    if not sign.is_dir():
        raise UnfitError(
            "this machine was not booted with systemd: no timer could fire here",
            wanted="a controller whose PID 1 is systemd",
            seen=f"no {sign}",
            hint="add it on a machine that has it (a host itself will do: transport: local), or let what starts things "
            "here call opsctl run … --plain",
        )


def add(schedule: Schedule, ledger: Ledger) -> None:
    """Save a schedule and start its timer; where that fails nothing of it is left. Raises as ``install``."""
    ledger.save(schedule)
    try:
        install(unit_texts(schedule), schedule.timer, schedule.scope)
    except BaseException:
        ledger.remove(schedule.name)
        raise
    ledger.note(schedule.name, "added", schedule.when)


def install(texts: dict[str, str], timer: str, scope: Scope) -> None:
    """Write units and start the timer. On any failure what was written is taken away again.

    Raises PrivilegeMissing, BusError, UnfitError.
    """
    require_systemd()
    folder = unit_folder(scope)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            partial = folder / f".{name}.partial"
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o644)
            partial.replace(folder / name)
            written.append(folder / name)
        systemctl(scope, "daemon-reload")
        systemctl(scope, "enable", "--now", timer)
    except PermissionError as error:
        raise PrivilegeMissing(
            f"{folder} cannot be written",
            seen=error.strerror,
            hint="run it as root, or --scope user (with loginctl enable-linger, or it stops when you log out)",
        ) from error
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def uninstall(timer: str, service: str, scope: Scope) -> None:
    """Stop the timer and take both units away; a run that is going on is left to end. Idempotent."""
    folder = unit_folder(scope)
    if (folder / timer).exists():
        systemctl(scope, "disable", "--now", timer)
    try:
        for name in (timer, service):
            (folder / name).unlink(missing_ok=True)
    except PermissionError as error:
        raise PrivilegeMissing(
            f"{folder} cannot be written", seen=error.strerror, hint="run it as the user who added the schedule"
        ) from error
    systemctl(scope, "daemon-reload")


def state(timer: str, service: str, scope: Scope) -> TimerState:
    """Return when the timer fires next and how the last run ended."""
    fields = _show(scope, timer, "LoadState", "ActiveState", "NextElapseUSecRealtime", "LastTriggerUSec")
    upcoming = _listed(scope, timer)
    result = _show(scope, service, "Result").get("Result", "")
    return TimerState(
        loaded=fields.get("LoadState") == "loaded",
        active=fields.get("ActiveState") == "active",
        next=_micros(upcoming.get("next")),
        last=_micros(upcoming.get("last")),
        result=result,
    )


def _listed(scope: Scope, timer: str) -> dict[str, int]:
    """Return the timer's row of ``systemctl list-timers``, whose times are µs since the epoch."""
    text = systemctl(scope, "list-timers", "--all", "--output=json", timer)
    try:
        rows: list[dict[str, object]] = json.loads(text or "[]")
    except ValueError:
        return {}
    row = next((row for row in rows if row.get("unit") == timer), {})
    return {key: found for key in ("next", "last") if isinstance(found := row.get(key), int)}


def _micros(micros: int | None) -> str | None:
    # systemd says "never" with 0 or with the largest number there is.
    if not micros or micros > 253_402_300_799_000_000:
        return None
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="seconds")


def _show(scope: Scope, unit: str, *properties: str) -> dict[str, str]:
    text = systemctl(scope, "show", unit, f"--property={','.join(properties)}")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def normalised(calendar: str) -> str:
    """Return systemd's own spelling of a calendar expression. Raises UnfitError where it is none."""
    done = _call(["systemd-analyze", "calendar", "--", calendar])
    for line in done.stdout.splitlines():
        if line.strip().startswith("Normalized form:"):
            return line.split(":", 1)[1].strip()
    raise UnfitError(
        f"{calendar!r} is no time that systemd knows",
        wanted="02:30, Sun 03:00, or an OnCalendar= expression (man systemd.time)",
        seen=(done.stderr or done.stdout).strip().splitlines()[0] if (done.stderr or done.stdout).strip() else None,
    )


def starts_between(calendar: str, after: datetime, before: datetime) -> list[str]:
    """Return when a calendar expression wanted a start between two moments (at most MOST_MISSED), UTC, ISO 8601."""
    base = after.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    done = _call(
        ["systemd-analyze", "calendar", f"--base-time={base}", f"--iterations={MOST_MISSED}", "--", calendar], utc=True
    )
    found = []
    for line in done.stdout.splitlines():
        match = _ITERATION.search(line.strip())
        text = match and (match["utc"] or match["local"])
        moment = _moment(text) if text else None
        if moment is not None and after < moment < before:
            found.append(moment.isoformat())
    return list(dict.fromkeys(found))


def _moment(text: str) -> datetime | None:
    # "Tue 2026-12-01 02:30:00 UTC", since it is asked with TZ=UTC.
    try:
        return datetime.strptime(text.strip(), "%a %Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    except ValueError:
        return None


def journal_lines(unit: str, scope: Scope, count: int) -> str:
    """Return the last lines of a unit's journal."""
    which = ["--user-unit" if scope == "user" else "--unit", unit]
    return _call(["journalctl", *which, "--no-pager", f"--lines={count}", "--output=short-iso"]).stdout


def systemctl(scope: Scope, *arguments: str) -> str:
    """Run systemctl and return what it printed. Raises BusError, PrivilegeMissing, DeadlineExceeded."""
    which = ["--user"] if scope == "user" else []
    done = _call(["systemctl", *which, "--no-ask-password", "--no-pager", *arguments])
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip()
    if "authentication required" in said.lower() or "access denied" in said.lower():
        raise PrivilegeMissing(
            f"systemctl {' '.join(arguments)} was refused", seen=said, hint="run it as root, or --scope user"
        )
    raise BusError(f"systemctl {' '.join(arguments)} failed", seen=said, hint="is systemd running here?")


def _call(argv: list[str], *, utc: bool = False) -> subprocess.CompletedProcess[str]:
    if shutil.which(argv[0]) is None:
        raise UnfitError(f"{argv[0]} is not on this machine", wanted="a machine with systemd for schedules")
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", **({"TZ": "UTC"} if utc else {})}
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"{argv[0]} did not answer within {LIMIT:g} s", seen=" ".join(argv)) from None
