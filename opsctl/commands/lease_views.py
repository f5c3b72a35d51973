"""What ``opsctl lease`` and ``opsctl guard`` share: going to each host, and showing what its guard said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from opsctl.campaign import limits
from opsctl.deadline import Deadline
from opsctl.host import connect
from opsctl.host.guard import control
from opsctl.host.guard.control import LeaseView
from opsctl.host.protocol import Host
from opsctl.playbook.inventory import load_inventory


def each_host(
    target: str, inventory: Path, act: Callable[[Host, Deadline], LeaseView | None]
) -> dict[str, LeaseView | None]:
    """Do one thing on every host of a name and return what each guard then showed; None where there is no guard."""
    loaded = load_inventory(inventory)
    views = {}
    for name in loaded.hosts_of(target):
        host = connect(name, loaded.host(name), deadline=Deadline(limits.CONNECT, f"connection to {name}"))
        try:
            views[name] = act(host, Deadline(limits.UNIT_JOB, f"a call of the guard on {name}"))
        finally:
            host.close()
    return views


def print_views(views: Mapping[str, LeaseView | None], *, as_json: bool, guard: bool = False) -> None:
    """Print every host's view: one JSON document, or a few lines a host."""
    if as_json:
        print(json.dumps({name: view.document() if view else None for name, view in views.items()}, indent=2))
        return
    for name, view in views.items():
        if view is None:
            print(f"{name}: no guard is installed (opsctl guard install {name}; opsctl run does it by itself)")
            continue
        print(f"{name}: {view.describe()}")
        if view.live and not view.watched:
            print("  THE GUARD DOES NOT LOOK: nothing restores production by itself; systemctl status opsctl-guard")
        if view.unverified:
            print(f"  {view.unit} was not verified: opsctl rollback {name} verifies it and closes the lease")
        if guard:
            same = "this opsctl's" if view.version == control.version() else "another than this opsctl's"
            looked = f"last look {view.tick_age:.0f} s ago" if view.live and view.watched else "not looking: no lease"
            print(f"  version {view.version[:12]} ({same}); {looked}")
        for line in view.log if guard else view.log[-5:]:
            print(f"  {line}")
