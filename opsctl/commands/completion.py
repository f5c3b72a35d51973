"""What the shell offers after Tab: playbooks, hosts, services, runs. Never raises, never speaks, never connects."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from opsctl.errors import OpsctlError


def complete_playbook(incomplete: str) -> list[str]:
    """Return playbooks here and in playbooks/, with the place that the person has typed so far."""
    here = [path for path in _yaml_files(Path()) if path.name != "inventory.yml"]
    named = [path.name for path in _yaml_files(Path("playbooks"))]
    typed = [str(path) for path in _yaml_files(Path(incomplete).parent)] if "/" in incomplete else []
    return _starting({*(str(path) for path in here), *named, *typed}, incomplete)


def complete_host(incomplete: str) -> list[str]:
    """Return hosts and groups of the inventory here, or of the one that OPSCTL_INVENTORY names."""
    from opsctl.playbook import load_inventory

    with contextlib.suppress(OpsctlError):
        inventory = load_inventory(Path(os.environ.get("OPSCTL_INVENTORY", "inventory.yml"))).inventory
        return _starting({*inventory.hosts, *inventory.groups}, incomplete)
    return []


def complete_run(incomplete: str) -> list[str]:
    """Return runs of the journal, newest first."""
    from opsctl.campaign.journal import Journal, state_home
    from opsctl.campaign.reading import list_runs

    with contextlib.suppress(OpsctlError, OSError):
        if state_home().is_dir():
            with Journal.open() as journal:
                return [run.run for run in list_runs(journal) if run.run.startswith(incomplete)]
    return []


def _yaml_files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.suffix in {".yml", ".yaml"} and path.is_file())
    return []


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
