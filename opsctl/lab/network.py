"""Cables of the lab: one bridge a lab, one veth pair a host.

The bridge is the allocation: ``ip link add`` of a name that exists fails, so two labs that start at once
cannot take the same number, and no file can be left behind that says otherwise. Its alias holds the lab's
folder, by which a lab whose owner is gone is found again.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from opsctl.errors import OpsctlError

_PREFIX = "opslab"
_LABS = 250


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
    if check and done.returncode != 0:
        raise OpsctlError(f"ip {' '.join(arguments)} failed", seen=done.stderr.strip())
    return done


def subnet() -> str:
    """Return the first two bytes of the lab's addresses (OPSCTL_LAB_NET, by default 10.77)."""
    return os.environ.get("OPSCTL_LAB_NET", "10.77")


def address(index: int, number: int) -> str:
    """Return the address of host ``number`` (from 1) in lab ``index``; number 0 is the bridge itself."""
    return f"{subnet()}.{index}.{number + 1}"


def bridge(index: int) -> str:
    """Return the bridge's name."""
    return f"{_PREFIX}{index}"


def mac(index: int, number: int) -> str:
    """Return the hardware address of a host's eth0, the same at every boot: a neighbour cache never holds another.

    Number 0 is the bridge, which would otherwise take that of a cable and change it whenever one is unplugged.
    """
    return f"02:6f:70:73:{index:02x}:{number:02x}"


def cable(index: int, number: int) -> str:
    """Return the name of this machine's end of a host's cable."""
    return f"{_PREFIX}{index}-{number}"


def make_bridge(folder: Path) -> int:
    """Make a bridge for the lab in ``folder`` and return its number."""
    for index in range(_LABS):
        made = _ip("link", "add", bridge(index), "address", mac(index, 0), "type", "bridge", check=False)
        if made.returncode != 0:
            if "exists" in made.stderr:
                continue
            raise OpsctlError("cannot make a network bridge", seen=made.stderr.strip(), hint="the lab needs root")
        _ip("link", "set", bridge(index), "alias", f"{_PREFIX}:{folder}", "up")
        _ip("addr", "add", f"{address(index, 0)}/24", "dev", bridge(index))
        return index
    raise OpsctlError(f"all {_LABS} lab networks are taken", hint="opsctl lab list; opsctl lab down --stale")


def remove_bridge(index: int) -> None:
    """Remove a bridge with the cables that still hang on it; none is no error."""
    for name in links():
        if name.startswith(f"{bridge(index)}-"):
            _ip("link", "del", name, check=False)
    _ip("link", "del", bridge(index), check=False)


def links() -> dict[str, str]:
    """Return the lab's links on this machine: name → alias (empty for cables)."""
    shown = json.loads(_ip("-j", "link", "show").stdout or "[]")
    return {link["ifname"]: link.get("ifalias", "") for link in shown if link["ifname"].startswith(_PREFIX)}


def labs() -> dict[int, Path]:
    """Return every lab that has a bridge on this machine: number → folder."""
    found = {}
    for name, alias in links().items():
        number = name.removeprefix(_PREFIX)
        if number.isdigit() and alias.startswith(f"{_PREFIX}:"):
            found[int(number)] = Path(alias.removeprefix(f"{_PREFIX}:"))
    return found


def plug(index: int, number: int, pid: int) -> None:
    """Join a host's network namespace to the bridge; its end is eth0."""
    unplug(index, number)
    peer = ("peer", "name", "eth0", "address", mac(index, number), "netns", str(pid))
    _ip("link", "add", cable(index, number), "type", "veth", *peer)
    _ip("link", "set", cable(index, number), "master", bridge(index), "up")
    # A permanent neighbour: no second is lost to ARP before the host is up, and a cut cable is as silent as one
    # behind a router is (else the kernel reports "no route to host" after 3 s).
    _ip("neigh", "replace", address(index, number), "lladdr", mac(index, number), "dev", bridge(index))


def unplug(index: int, number: int) -> None:
    """Remove a host's cable; none is no error."""
    _ip("neigh", "del", address(index, number), "dev", bridge(index), check=False)
    _ip("link", "del", cable(index, number), check=False)


def cut(index: int, number: int) -> None:
    """Pull the cable: nothing gets through in either direction, and no error is sent."""
    _ip("link", "set", cable(index, number), "down")


def heal(index: int, number: int) -> None:
    """Put the cable back."""
    _ip("link", "set", cable(index, number), "up")
