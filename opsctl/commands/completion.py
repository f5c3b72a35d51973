"""What the shell offers after Tab: playbooks, hosts, runs. Never raises, never speaks, never connects.

Parameters are known by their names, so that every command completes alike and none has to say how.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opsctl.errors import OpsctlError

INVENTORY = "inventory.yml"


def command_at_work(environment: Mapping[str, str]) -> str | None:
    """Return the command whose arguments a shell completes: the one module of commands that is needed for it."""
    typed = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or ""
    return next((word for word in typed.split()[1:] if not word.startswith("-")), None)


def attach(command: Any) -> None:
    """Teach a command, and those below it, to complete playbooks, hosts and runs."""
    for parameter in command.params:
        if parameter.name in _COMPLETERS and parameter.param_type_name == "argument":
            parameter._custom_shell_complete = _COMPLETERS[parameter.name]  # noqa: SLF001 - Typer's own place for it
    for nested in getattr(command, "commands", {}).values():
        attach(nested)


def complete_playbook(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """Return playbooks here and in playbooks/, with the folder that the person has typed so far."""
    here = [str(path) for path in _yaml_files(Path()) if path.name != INVENTORY]
    named = [path.name for path in _yaml_files(Path("playbooks"))]
    typed = (
        [str(path) for path in _yaml_files(Path(incomplete[: incomplete.rindex("/") + 1]))] if "/" in incomplete else []
    )
    return _starting({*here, *named, *typed}, incomplete)


def complete_host(context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """Return hosts and groups of the inventory that was typed with -i, else of the one here."""
    from opsctl.playbook.inventory import load_inventory

    given = (getattr(context, "params", None) or {}).get("inventory")
    with contextlib.suppress(OpsctlError):
        inventory = load_inventory(Path(given or INVENTORY)).inventory
        return _starting({*inventory.hosts, *inventory.groups}, incomplete)
    return []


def complete_run(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """Return runs of the journal, newest first."""
    from opsctl.runs.journal import Journal, state_home
    from opsctl.runs.reading import list_runs

    with contextlib.suppress(OpsctlError, OSError):
        if state_home().is_dir():
            with Journal.open() as journal:
                return [run.run for run in list_runs(journal) if run.run.startswith(incomplete)]
    return []


_COMPLETERS = {
    "playbook": complete_playbook,
    "playbooks": complete_playbook,
    "host": complete_host,
    "hosts": complete_host,
    "target": complete_host,
    "run": complete_run,
    "a": complete_run,
    "b": complete_run,
}


def _yaml_files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.suffix in {".yml", ".yaml"} and path.is_file())
    return []


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
