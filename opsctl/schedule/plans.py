"""What a schedule is, and the text of its units. Pure."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Literal

import jinja2
from pydantic import BaseModel, ConfigDict, Field

from opsctl.errors import UnfitError
from opsctl.quantities import format_duration, parse_duration

PREFIX = "opsctl-schedule-"
MARK = "opsctl schedule"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,60}[a-z0-9])?")
_CLOCK = re.compile(
    r"(?P<days>(?:[A-Za-z]{3,9}(?:\.\.|,)?)+ )?(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?"
)
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - nothing is written there
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EVERY = {"day": "*-*-*", "weekday": "Mon..Fri *-*-*", "week": "Mon *-*-*", "month": "*-*-01"}


class Schedule(BaseModel):
    """One playbook and when it runs. Stored beside the journal, and rendered into two units."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    playbook: str
    """Absolute path."""
    inventory: str
    """Absolute path."""
    host: str = ""
    """Host or group to run it on, instead of the playbook's own."""
    variables: tuple[str, ...] = ()
    """--var settings, NAME=VALUE."""
    calendar: str = ""
    """systemd's OnCalendar=; empty where ``interval`` is given."""
    interval: float = 0.0
    """Seconds from one start to the next, instead of a calendar."""
    persistent: bool = True
    """Run once when the machine comes up after it was off at the time."""
    random_delay: float = 0.0
    accuracy: float = 60.0
    when_busy: Literal["skip", "queue"] = "skip"
    queue_limit: float = Field(default=6 * 3600.0, ge=0)
    scope: Literal["system", "user"] = "system"
    user: str = ""
    folder: str
    """Where relative paths in the playbook start from."""
    state_home: str
    """XDG_STATE_HOME of the journal that the runs go into."""
    python: str
    """Interpreter that has opsctl."""
    path: str = ""
    """PATH of the person who added it: ssh and ProxyCommand programs are found there."""
    local_hosts: bool = False
    """Whether a host of the inventory is this machine: then the service may not be locked down as far."""
    keys: tuple[str, ...] = ()
    """Files of the inventory that ssh reads: private keys, known hosts."""

    @property
    def service(self) -> str:
        """Name of the service unit."""
        return f"{PREFIX}{self.name}.service"

    @property
    def timer(self) -> str:
        """Name of the timer unit."""
        return f"{PREFIX}{self.name}.timer"

    @property
    def in_tmp(self) -> bool:
        """Whether something that a run needs lies where a service with a /tmp of its own would not see it."""
        needed = (self.folder, self.playbook, self.inventory, self.python, self.state_home, *self.keys)
        return any(Path(path).is_relative_to(folder) for path in needed for folder in _TEMPORARY)

    @property
    def when(self) -> str:
        """When it runs, in words."""
        return self.calendar or f"every {format_duration(self.interval)}"

    def run_argv(self, playbook: str) -> list[str]:
        """Return the command that carries the playbook out."""
        variables = [word for variable in self.variables for word in ("--var", variable)]
        return [self.python, "-m", "opsctl", "run", playbook, "-i", self.inventory, *variables, "--plain"]


def checked_name(name: str) -> str:
    """Return a name that can be part of a unit's name. Raises UnfitError."""
    if not _NAME.fullmatch(name):
        raise UnfitError(
            f"{name!r} cannot name a schedule", wanted="lower-case letters, digits and dashes, such as nightly-kimi"
        )
    return name


def name_for(playbook: Path) -> str:
    """Return a schedule's name from its playbook's file name."""
    plain = re.sub(r"[^a-z0-9]+", "-", playbook.stem.lower()).strip("-")
    return checked_name(plain or "schedule")


def read_time(at: str | None, every: str | None) -> tuple[str, float]:
    """Return (calendar, interval in seconds), one of which is empty, for ``--at`` and ``--every``.

    ``--at 02:30`` is every night; ``--at "Sun 03:00"`` every Sunday; ``--every`` takes day, weekday, week,
    month, days such as mon,thu, or a duration such as 6h (then without ``--at``); anything else in ``--at``
    is handed to systemd as it is (OnCalendar=). Raises UnfitError.
    """
    days = "*-*-*"
    if every is not None:
        if every.lower() in _EVERY:
            days = _EVERY[every.lower()]
        elif all(part.strip().lower()[:3] in _DAYS for part in every.split(",")):
            days = ",".join(part.strip()[:3].title() for part in every.split(",")) + " *-*-*"
        else:
            return "", _interval(every, at)
    if at is None:
        raise UnfitError(
            "when should it run?", wanted='--at "02:30", --at "Sun 03:00", or --every 6h', hint="give --at or --every"
        )
    clock = _CLOCK.fullmatch(at.strip())
    if clock is None:
        if every is not None:
            raise UnfitError(f"--at {at!r} with --every {every!r}", wanted="a time such as 02:30 with --every")
        return at.strip(), 0.0
    if int(clock["hour"]) > 23 or int(clock["minute"]) > 59 or int(clock["second"] or 0) > 59:
        raise UnfitError(f"--at {at!r} is no time of a day", wanted="a time such as 02:30")
    if clock["days"]:
        days = f"{clock['days'].strip()} *-*-*"
    return f"{days} {int(clock['hour']):02}:{clock['minute']}:{clock['second'] or '00'}", 0.0


def _interval(every: str, at: str | None) -> float:
    try:
        seconds = parse_duration(every)
    except ValueError:
        raise UnfitError(
            f"--every {every!r} is not understood",
            wanted="day, weekday, week, month, mon,thu, or a duration such as 6h",
        ) from None
    if at is not None:
        raise UnfitError(f"--every {every} and --at {at}", wanted="one of them: a duration has no time of the day")
    if seconds < 60:
        raise UnfitError(f"--every {every} is too often", wanted="at least 1m")
    return seconds


def retargeted(text: str, host: str) -> str:
    """Return a playbook's text with another host or group in its ``hosts:``. Raises UnfitError where it has none."""
    changed, count = re.subn(r"(?m)^hosts:.*$", lambda _: f"hosts: {json.dumps(host)}", text, count=1)
    if not count:
        raise UnfitError("the playbook has no line `hosts:` that --host could replace", wanted="hosts: NAME")
    return changed


def unit_texts(schedule: Schedule) -> dict[str, str]:
    """Return the text of both units, by unit name."""
    common = {
        "mark": f"{MARK} {schedule.name}",
        "name": schedule.name,
        "playbook": _plain(Path(schedule.playbook).name),
    }
    # systemd expands no variable in a program's own path, only in its arguments.
    program = _setting("", schedule.python)
    words = ("-m", "opsctl", "schedule")
    home = Path(schedule.state_home)
    service = _template("opsctl-schedule.service.j2").render(
        **common,
        scope=schedule.scope,
        user=schedule.user if schedule.scope == "system" else "",
        folder=_escaped(schedule.folder),
        state_setting=_setting("XDG_STATE_HOME", str(home)),
        environment=[_setting("PATH", schedule.path)] if schedule.path else [],
        start=" ".join([program, *(_quoted(word) for word in (*words, "fire", schedule.name))]),
        stop_post=" ".join([program, *(_quoted(word) for word in (*words, "ended", schedule.name))]),
        writable=_setting("", str(home / "opsctl")),
        local_hosts=schedule.local_hosts,
        in_tmp=schedule.in_tmp,
    )
    timer = _template("opsctl-schedule.timer.j2").render(
        **common,
        calendar=_plain(schedule.calendar),
        interval=f"{schedule.interval:g}s",
        persistent=schedule.persistent,
        random_delay=f"{schedule.random_delay:g}s",
        accuracy=f"{schedule.accuracy:g}s",
    )
    return {schedule.service: service, schedule.timer: timer}


def _template(name: str) -> jinja2.Template:
    """Return a template of a unit. They lie in the package; the checkout's units/ links to them."""
    source = resources.files("opsctl.schedule").joinpath("units", name).read_text(encoding="utf-8")
    # A unit file is no HTML: what may break out of a line is refused by _plain and quoted by _quoted.
    environment = jinja2.Environment(
        autoescape=False,  # noqa: S701
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(source)


def _plain(text: str) -> str:
    """Return text that stays on its line of a unit file. Raises UnfitError for control characters."""
    if any(not letter.isprintable() for letter in text):
        raise UnfitError(f"{text!r} holds control characters", wanted="a plain line of text")
    return text.replace("%", "%%")


def _escaped(path: str) -> str:
    """Return a path as WorkingDirectory= takes it: no quotes, but specifiers doubled."""
    return _plain(path)


def _setting(name: str, value: str) -> str:
    """Return one quoted assignment (or, without a name, one quoted path): here a dollar sign means itself."""
    plain = _plain(f"{name}={value}" if name else value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


def _quoted(word: str) -> str:
    """Return one word of a command line as systemd reads it back (systemd.service(5), "Command lines")."""
    plain = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{plain}"'
