"""``opsctl run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def run(
    playbook: Annotated[str, typer.Argument(help="Playbook: a file, sought here and then in playbooks/.")],
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")] = Path("inventory.yml"),
    var: Annotated[list[str] | None, typer.Option("--var", help="Override a var: NAME=VALUE. May be repeated.")] = None,
    if_down: Annotated[
        str,
        typer.Option(help="When production was not serving before: refuse, restore it at the end, or leave it."),
    ] = "refuse",
    kill_foreign: Annotated[
        bool,
        typer.Option("--kill-foreign", help="Also kill processes on the GPUs that are not opsctl's own."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Write events as JSON Lines.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
) -> None:
    """Carry a playbook out; production is back and verified at the end.

    [bold]Exit codes[/bold]: 0 verified · 1 failed, production verified · 2 not fit, nothing touched ·
    3 PRODUCTION NOT VERIFIED · 4 held by someone else · 5 inconclusive · 130 interrupted, production verified.

    [bold]Examples[/bold]

      opsctl run playbooks/profile-campaign.yml

      opsctl run nightly-snapshot -i inventory.yml --var 'concurrency=[1, 8]' --json
    """
    from opsctl.campaign import runner
    from opsctl.campaign.definition import RunRequest, new_run_id, read_definition
    from opsctl.runs.journal import Journal

    request = RunRequest(playbook, inventory, tuple(var or ()), checked_if_down(if_down), kill_foreign)
    definition = read_definition(request)
    run_id = new_run_id()
    with Journal.open() as journal:
        sinks = open_sinks(journal, run_id, as_json=json, plain=plain)
        code = runner.begin(definition, run_id, journal, sinks)
        conclude(journal, run_id, sinks, as_json=json)
    raise typer.Exit(int(code))


def checked_if_down(word: str) -> Any:
    """Return the word when it is one of the three."""
    if word not in {"refuse", "restore", "leave"}:
        raise typer.BadParameter(f"wanted refuse, restore or leave, found {word!r}", param_hint="--if-down")
    return word


def open_sinks(journal: Any, run_id: str, *, as_json: bool, plain: bool) -> list[Any]:
    """Return where a run's events are shown: JSON Lines, a live view or plain lines; and to other terminals."""
    from opsctl.commands.terminal import Terminal
    from opsctl.runs.events import JsonLines
    from opsctl.runs.live_file import LiveFile
    from opsctl.runs.queued_sink import QueuedSink
    from opsctl.runs.reading import load_run
    from opsctl.terminal.live_view import LiveView, PlainLines

    elsewhere = LiveFile(journal.run_folder(run_id))
    if as_json:
        return [QueuedSink(JsonLines()), elsewhere]
    console = Terminal()
    if plain or not console.is_terminal:
        return [QueuedSink(PlainLines(console)), elsewhere]
    return [QueuedSink(LiveView(console, lambda: load_run(journal, run_id, events=False))), elsewhere]


def conclude(journal: Any, run_id: str, sinks: list[Any], *, as_json: bool) -> None:
    """Write the report, end the live view, and print the summary: the finding, and whether production is back."""
    from opsctl.campaign.reporting import conclude_run
    from opsctl.commands.output import say_error
    from opsctl.commands.terminal import Terminal
    from opsctl.errors import OpsctlError, as_defect
    from opsctl.terminal.summary import last_word

    def conclude_and_say() -> None:
        aftermath = conclude_run(journal, run_id)
        if not as_json:
            words = last_word(journal, run_id, aftermath)
            Terminal().print(words, markup=False, highlight=False, soft_wrap=True)

    # Each on its own: a view that fails must not keep back whether production is verified.
    for end in (*(sink.close for sink in sinks), conclude_and_say):
        try:
            end()
        except OSError:
            # Whoever read us has gone; the exit code is true all the same.
            continue
        except Exception as error:  # noqa: BLE001 - how the run ended stands, even when the summary fails
            say_error(error if isinstance(error, OpsctlError) else as_defect(error), as_json=False)
