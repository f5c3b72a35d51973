"""The lab as a whole: names, several labs, and what a killed process leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.errors import UnfitError
from opsctl.lab import network, processes
from opsctl.lab.lab import Lab, _machine_lock, all_labs, reap

pytestmark = pytest.mark.lab


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def other(tmp_path: Path) -> Lab:
    return Lab.open(tmp_path / "lab")


def test_down_frees_everything(other: Lab) -> None:
    host = other.up("one")
    init = int((host.folder / "init").read_text().split()[0])
    assert network.cable(other.index, host.number) in network.links()
    other.down()
    assert not Path(f"/proc/{init}").exists()
    assert str(other.folder) not in mounts()
    assert other.index not in network.labs() or network.labs()[other.index] != other.folder
    assert not processes.group(other.index).exists()
    assert not other.folder.exists()


def test_opening_again_finds_the_same_lab(other: Lab) -> None:
    try:
        other.up("one")
        again = Lab.open(other.folder)
        assert again == other
        assert [host.name for host in again.hosts()] == ["one"]
        assert again.host("one").state == "up"
    finally:
        other.down()


def test_labs_stand_side_by_side(lab: Lab, other: Lab) -> None:
    try:
        mine, theirs = lab.up("twin"), other.up("twin")
        assert mine.address != theirs.address
        theirs.write_file("/etc/whose", "theirs")
        assert not mine.exists("/etc/whose")
        assert {lab.folder, other.folder} <= {known.folder for known in all_labs()}
    finally:
        other.down()
        lab.down("twin")


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../x", "x" * 32, "-x"])
def test_names_that_are_no_names(lab: Lab, name: str) -> None:
    with pytest.raises(UnfitError, match="cannot be named"):
        lab.create(name)


def test_unknown_host_says_which_there_are(lab: Lab) -> None:
    with pytest.raises(UnfitError, match="no host nobody"):
        lab.host("nobody")


def test_a_folder_that_the_overlay_cannot_take(tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match="cannot be"):
        Lab.open(tmp_path / "with,comma")


KILLED = """
import os, signal, sys
from pathlib import Path
from opsctl.lab.lab import _machine_lock, Lab
from opsctl.lab import hosts
if sys.argv[2] == "mid-boot":
    launch = hosts.LabHost._launch
    hosts.LabHost._launch = lambda *a: (launch(*a), os.kill(os.getpid(), signal.SIGKILL))
lab = Lab.open(Path(sys.argv[1]), owner=os.getpid())
lab.up("one")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("instant", ["after", "mid-boot"])
def test_what_a_killed_owner_leaves_is_found_and_freed(tmp_path: Path, instant: str) -> None:
    folder = tmp_path / "lab"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), instant], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    left = next(known for known in all_labs() if known.folder == folder)
    assert left.stale
    assert folder in {gone.folder for gone in reap()}
    assert folder not in {known.folder for known in all_labs()}
    assert str(folder) not in mounts()
    assert not folder.exists()


def test_a_lab_that_is_being_made_is_not_taken_for_stale(tmp_path: Path) -> None:
    """Two test sessions begin at once: the other's bridge is there, and its owner is not yet written down."""
    folder = tmp_path / "lab"
    folder.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with _machine_lock():
            index = network.make_bridge(folder)
            reaped = pool.submit(reap)
            with pytest.raises(TimeoutError):
                reaped.result(1)
            owner = processes.Process.of(os.getpid())
            (folder / "lab.json").write_text(json.dumps({"index": index, "owner": [owner.pid, owner.started]}))
        assert folder not in {gone.folder for gone in reaped.result(30)}
    Lab.find(folder).down()
    assert folder not in {known.folder for known in all_labs()}


def test_a_lab_whose_owner_lives_is_left_alone(lab: Lab) -> None:
    assert not lab.stale
    assert lab.folder not in {gone.folder for gone in reap()}
    assert processes.Process.of(os.getpid()).alive
