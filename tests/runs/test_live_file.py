from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.runs.events import Event
from opsctl.runs.live_file import NAME, Ephemeral, LiveFile, read_live


def event(name: str, message: str = "", *, ephemeral: bool = False) -> Event:
    return Event("2026-12-01T02:45:10.000+00:00", "r", name, "kimi", message=message, ephemeral=ephemeral)


ARMED = event("lease.armed")
LOADING = event("service.loading", "45 %", ephemeral=True)
LOST = event("host.lost", "the link to kimi is lost")


@pytest.mark.parametrize(
    ("events", "progress", "leases"),
    [
        ([ARMED, LOADING], {"kimi": "45 %"}, {"kimi": "armed"}),
        ([ARMED, event("lease.renewed", "held for 60 s more", ephemeral=True)], {}, {"kimi": "held"}),
        ([LOADING, event("service.ready")], {}, {}),
        ([LOADING, LOST], {"kimi": "the link to kimi is lost"}, {}),
        ([LOADING, LOST, event("host.back")], {}, {}),
        ([ARMED, event("lease.lost")], {}, {"kimi": "LOST"}),
    ],
)
def test_another_terminal_reads_what_this_one_shows(
    tmp_path: Path, events: list[Event], progress: dict[str, str], leases: dict[str, str]
) -> None:
    here = Ephemeral()
    for each in events:
        here.take(each)
    assert (here.progress, here.leases) == (progress, leases)
    sink = LiveFile(tmp_path)
    for each in [*events, event("lease.released")]:
        sink.show(each)
    there = read_live(tmp_path)
    assert there.progress == progress
    assert there.leases == {"kimi": "released"}
    sink.close()
    assert read_live(tmp_path) == Ephemeral()


def test_progress_alone_is_written_twice_a_second_at_most(tmp_path: Path) -> None:
    sink = LiveFile(tmp_path)
    for number in range(100):
        sink.show(event("service.loading", f"{number} %", ephemeral=True))
    assert read_live(tmp_path).progress == {"kimi": "0 %"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"progress": 3, "leases": {}}', "null"])
def test_a_broken_file_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_live(tmp_path) == Ephemeral()
