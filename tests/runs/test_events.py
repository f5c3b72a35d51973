from __future__ import annotations

import io
import json
import re
from pathlib import Path

from rich.console import Console

from opsctl.runs import events
from opsctl.runs.events import Event, JsonLines, Recorder
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.terminal.live_view import PlainLines


def test_events_reach_journal_and_sinks_with_secrets_blanked(tmp_path: Path) -> None:
    out = io.StringIO()
    with Journal(tmp_path) as journal:
        journal.begin_run("r", playbook="p", file="f", version="0", definition={})
        recorder = Recorder("r", journal, [JsonLines(out)])
        recorder.say("phase.begun", "vllm --api-key hunter2", host="kimi", phase="x", argv=["--api-key", "hunter2"])
        recorder.progress("service.loading", "45 %", host="kimi", done=45)
        kept = load_run(journal, "r").events
    shown = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event.event for event in kept] == ["phase.begun"]
    assert [event["event"] for event in shown] == ["phase.begun", "service.loading"]
    assert "hunter2" not in out.getvalue()
    assert set(shown[0]) == {"time", "run", "host", "phase", "step", "event", "message", "data"}


def test_every_event_name_in_the_code_is_in_the_promised_list() -> None:
    promised = set(re.findall(r"[a-z]+\.[a-z]+", (events.__doc__ or "").split("::")[1]))
    used: set[str] = set()
    for path in Path(events.__file__).parent.glob("*.py"):
        used |= set(re.findall(r'(?:say|progress)\(\s*"([a-z]+\.[a-z]+)"', path.read_text()))
    assert used <= promised, used - promised


def test_plain_lines_show_progress_seldom_and_the_rest_always() -> None:
    console = Console(file=io.StringIO(), width=80, no_color=True)
    lines = PlainLines(console)
    for number in range(5):
        lines.show(
            Event("2026-12-01T02:45:10.000+00:00", "r", "service.loading", "kimi", message=f"{number}", ephemeral=True)
        )
    lines.show(Event("2026-12-01T02:45:11.000+00:00", "r", "service.ready", "kimi", message="serves [bold]"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == ["02:45:10 kimi       0", "02:45:11 kimi       serves [bold]"]
