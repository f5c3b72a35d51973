"""``opsctl validate``, ``opsctl schema`` and ``opsctl plan``: what the user wrote, before anything is done with it."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.errors import DefinitionError, ExitCode, Problem
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import LoadedPlaybook, find_playbook, load_playbooks

if TYPE_CHECKING:
    from opsctl.plan import Line

PlaybookName = Annotated[str, typer.Argument(help="A playbook: sought here, then in playbooks/; .yml may be left out.")]
InventoryPath = Annotated[Path, typer.Option("--inventory", "-i", help="The inventory.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--var", help="Override a var of the playbook: NAME=VALUE, the value as YAML. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


class SchemaKind(StrEnum):
    """What ``opsctl schema`` describes."""

    PLAYBOOK = "playbook"
    INVENTORY = "inventory"


class IfDownChoice(StrEnum):
    """What a run would do where production is down."""

    REFUSE = "refuse"
    RESTORE = "restore"
    LEAVE = "leave"


def validate(
    playbooks: Annotated[
        list[str] | None,
        typer.Argument(help="Playbooks; without one, only the inventory."),
    ] = None,
    inventory: InventoryPath = Path("inventory.yml"),
    var: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Check playbooks and the inventory: every problem at once, each with file, line and column.

    [bold]Exit codes[/bold]: 0 fit · 2 not fit: each problem with what was wanted,
    what was found, and the nearest valid name.

    [bold]Examples[/bold]

      opsctl validate profile-campaign.yml

      opsctl validate profile-campaign nightly-snapshot -i inventory.yml --var rounds=1 --json
    """
    lines, problems = _examined(playbooks or [], inventory, var or [])
    if json_:
        shown = [dataclasses.asdict(problem) for problem in sorted(problems)]
        print(json.dumps({"valid": not problems, "problems": shown, "fit": lines}, ensure_ascii=False))
        raise typer.Exit(ExitCode.UNFIT if problems else ExitCode.VERIFIED)
    for line in lines:
        print(line)
    if problems:
        raise DefinitionError(problems)


def _examined(names: list[str], inventory: Path, overrides: list[str]) -> tuple[list[str], list[Problem]]:
    """Return a line for each file that is fit, and every problem of the others."""
    lines: list[str] = []
    problems: list[Problem] = []
    try:
        loaded = load_inventory(inventory)
    except DefinitionError as error:
        # Without an inventory nothing can be said of playbooks: each name in it would be unknown.
        return lines, error.problems
    lines.append(_inventory_line(loaded))
    for name in names:
        try:
            lines += _playbook_lines(load_playbooks(find_playbook(name), loaded, overrides))
        except DefinitionError as error:
            problems += error.problems
    return lines, problems


def schema(
    kind: Annotated[SchemaKind, typer.Argument(help="Which file.")] = SchemaKind.PLAYBOOK,
    json_: AsJson = False,  # noqa: ARG001 - it is JSON anyway
) -> None:
    """Print the JSON Schema of playbooks or inventories, for editors.

    An editor with yaml-language-server reads it from the first line of a file:

      # yaml-language-server: $schema=playbook.schema.json

    [bold]Examples[/bold]

      opsctl schema > playbook.schema.json

      opsctl schema inventory
    """
    from opsctl.playbook.schema import json_schema

    print(json.dumps(json_schema(kind.value), indent=2, ensure_ascii=False))


def plan(
    playbook: PlaybookName,
    inventory: InventoryPath = Path("inventory.yml"),
    var: Overrides = None,
    if_down: Annotated[
        IfDownChoice, typer.Option(help="Plan for production that was found down, as `opsctl run` takes it.")
    ] = IfDownChoice.REFUSE,
    kill_foreign: Annotated[
        bool, typer.Option("--kill-foreign", help="Judge as for a run that may kill processes of others on the GPUs.")
    ] = False,
    cells: Annotated[bool, typer.Option("--cells", help="List every cell.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not probe the hosts: all is unknown.")] = False,
    json_: AsJson = False,
) -> None:
    """Show what a run would do, from read-only probes of the hosts. Changes nothing.

    The actions that a run executes, in order, and the branches that it takes
    when something fails; the number of weight loads; what users of production
    notice, and for how long, from loads measured before. What a run would
    refuse is refused here first. What is not known is shown as unknown.

    [bold]Exit codes[/bold]: 0 planned · 2 the playbook, inventory or a host is not fit · 4 held by someone else.

    [bold]Examples[/bold]

      opsctl plan profile-campaign.yml

      opsctl plan profile-campaign -i inventory.yml --var 'concurrency=[1, 8]' --cells
    """
    from opsctl.plan import HostFacts, Line, document, lines_of
    from opsctl.plan import plan as make_plan

    loaded = load_inventory(inventory)
    found = load_playbooks(find_playbook(playbook), loaded, var or ())
    seen: dict[str, HostFacts] = {}
    if not offline:
        from opsctl.campaign.definition import Definition, RunRequest
        from opsctl.campaign.preflight import connected, look
        from opsctl.runs.journal import Journal

        request = RunRequest(playbook, inventory, tuple(var or ()), if_down.value, kill_foreign)
        definition = Definition(request, loaded, found)
        with Journal.open() as journal:
            for name in found.hosts:
                with connected(loaded, name) as host:
                    seen[name] = look(
                        host, definition.services(name), journal, if_down=if_down.value, kill_foreign=kill_foreign
                    ).facts  # fmt: skip
    made = make_plan(found.by_host, loaded, seen, if_down=if_down.value)
    if json_:
        print(json.dumps(document(made), ensure_ascii=False))
    else:
        _show([*lines_of(made, cells=cells), *(Line("yellow", note) for note in _unused_lines(found))])
    refusals = [refusal for host in made.hosts for refusal in host.refusals]
    if refusals:
        held = all(refusal.exit_code is ExitCode.HELD for refusal in refusals)
        raise typer.Exit(ExitCode.HELD if held else ExitCode.UNFIT)


def _show(lines: list[Line]) -> None:
    """Print lines, wrapped under themselves where a terminal is narrow; as they are into a file."""
    from rich.text import Text

    from opsctl.commands.terminal import Terminal

    console = Terminal(highlight=False, soft_wrap=True)
    for line in lines:
        shown = line.text
        if console.is_terminal:
            indent = " " * line.hang
            words = {"break_long_words": False, "break_on_hyphens": False}
            shown = textwrap.fill(shown, console.width, subsequent_indent=indent, **words)  # type: ignore[arg-type]
        console.print(Text(shown, style=line.style))


def _inventory_line(loaded: LoadedInventory) -> str:
    inventory = loaded.inventory
    counts = f"{len(inventory.hosts)} hosts, {len(inventory.groups)} groups, {len(inventory.services)} services"
    return f"{loaded.path}: fit ({counts})"


def _playbook_lines(loaded: LoadedPlaybook) -> list[str]:
    first = next(iter(loaded.by_host.values()))
    steps = sum(len(phase.steps) for phase in first.phases)
    counts = f"{len(first.phases)} phases, {steps} steps, on {', '.join(loaded.hosts)}"
    return [f"{loaded.path}: fit ({counts})", *_unused_lines(loaded)]


def _unused_lines(loaded: LoadedPlaybook) -> list[str]:
    if not loaded.unused_vars:
        return []
    names = ", ".join(loaded.unused_vars)
    return [f"note: the inventory gives vars that {loaded.path} does not have: {names}"]
