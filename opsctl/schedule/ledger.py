"""The schedules and the outcome of each start: files in the controller's state folder.

A schedule is one JSON file; its starts are JSON Lines beside it, each line written at once.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from opsctl.errors import UnfitError
from opsctl.schedule.plans import Schedule, retargeted

FOLDER = "schedules"


class Entry(BaseModel):
    """One thing that happened to a schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: str
    event: str
    """added, started, skipped, waited, missed, ended."""
    message: str = ""
    exit_code: int | None = None
    missed: tuple[str, ...] = ()
    """Times at which it should have started, and nothing ran: the machine was off, or the timer stopped."""


class Ledger:
    """The schedules of one state folder."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / FOLDER

    @property
    def lock_path(self) -> Path:
        """File whose lock a scheduled run holds: never two at once."""
        return self.folder / "running.lock"

    def save(self, schedule: Schedule) -> None:
        """Store a schedule, completely or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self.folder / f".{schedule.name}.partial"
        partial.write_text(schedule.model_dump_json(indent=2), encoding="utf-8")
        partial.replace(self._path(schedule.name))

    def load(self, name: str) -> Schedule:
        """Return a schedule. Raises UnfitError where there is none, or its file is broken."""
        try:
            return Schedule.model_validate_json(self._path(name).read_bytes())
        except FileNotFoundError:
            raise UnfitError(
                f"there is no schedule {name!r}",
                seen=", ".join(self.names()) or "no schedules",
                where=str(self.folder),
                hint="opsctl schedule list",
            ) from None
        except ValidationError as error:
            raise UnfitError(
                f"schedule {name!r} cannot be read",
                seen=error.errors()[0]["msg"],
                where=str(self._path(name)),
                hint=f"opsctl schedule remove {name}, then add it again",
            ) from None

    def playbook_of(self, schedule: Schedule) -> str:
        """Return the path of the playbook to run: the schedule's own, or a copy of it as it is now for its host.

        Raises UnfitError where it cannot be read.
        """
        if not schedule.host:
            return schedule.playbook
        try:
            text = retargeted(Path(schedule.playbook).read_text(encoding="utf-8"), schedule.host)
        except OSError as error:
            raise UnfitError(f"{schedule.playbook} cannot be read", seen=error.strerror) from error
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = self.folder / f"{schedule.name}.playbook.yml"
        copy.write_text(text, encoding="utf-8")
        return str(copy)

    def names(self) -> list[str]:
        """Return the names of all schedules."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def remove(self, name: str) -> None:
        """Forget a schedule; the outcomes of its starts stay."""
        self._path(name).unlink(missing_ok=True)

    def note(self, name: str, event: str, message: str = "", **more: Any) -> Entry:
        """Write down one event, now."""
        entry = Entry(time=datetime.now(UTC).isoformat(timespec="seconds"), event=event, message=message, **more)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        line = entry.model_dump_json(exclude_none=True).encode() + b"\n"
        log = os.open(self._log_path(name), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # After a crash the last line may lack its end: this one must not be lost together with it.
            size = os.fstat(log).st_size
            cut = size > 0 and os.pread(log, 1, size - 1) != b"\n"
            os.write(log, (b"\n" if cut else b"") + line)
            os.fsync(log)
        finally:
            os.close(log)
        return entry

    def entries(self, name: str) -> list[Entry]:
        """Return what happened, the oldest first. A line cut off by a crash is left out."""
        try:
            lines = self._log_path(name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(Entry.model_validate(json.loads(line)))
            except ValueError:
                continue
        return entries

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log.jsonl"
