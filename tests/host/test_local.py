"""What is the local link's alone; what it shares with SSH is in test_machine.py and test_files.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from opsctl.errors import DeadlineExceeded
from opsctl.host import connect
from opsctl.host.local import LocalLink
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.playbook.models import HostEntry
from tests.host.conftest import limit


@pytest.fixture
def here() -> Host:
    return connect("here", HostEntry(transport="local"), deadline=limit())


def test_a_child_that_keeps_running_after_closing_its_streams_is_ended() -> None:
    pieces: list[bytes] = []
    argv = ["sh", "-c", "echo $$; exec <&- >&- 2>&-; exec sleep 100"]
    with pytest.raises(DeadlineExceeded) as caught:
        LocalLink().execute(argv, deadline=limit(0.5), stdout=pieces.append)
    assert "runs on" in (caught.value.seen or "")
    assert not Path(f"/proc/{int(b''.join(pieces))}").exists()


def test_nobody_listens(here: Host) -> None:
    with here.http("http://127.0.0.1:9") as client, pytest.raises(httpx.ConnectError):
        client.get("/")


def test_no_thread_and_no_child_stays(here: Host) -> None:
    here.run(["true"], deadline=limit())
    here.close()
    assert threading.active_count() == 1
    assert LocalLink().alive


@pytest.mark.lab
def test_systemd_of_the_machine_that_it_runs_on(lab_host: LabHost) -> None:
    script = (
        "from opsctl.host import connect\n"
        "from opsctl.deadline import Deadline\n"
        "from opsctl.playbook.models import HostEntry\n"
        "limit = lambda: Deadline(20, 'x')\n"
        "host = connect('here', HostEntry(transport='local'), deadline=limit())\n"
        "systemd = host.systemd()\n"
        "print(systemd.status('ssh', deadline=limit()).active_state)\n"
        "print(systemd.stop('systemd-logind.service', deadline=limit()).result)\n"
        "print(len(host.journal('ssh.service', after='', deadline=limit()).lines) > 0)\n"
        "host.close()\n"
        "import threading; print(threading.active_count())\n"
    )
    said = subprocess.run(
        lab_host.exec_argv(sys.executable, "-W", "error", "-c", script),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert said.stdout.split() == ["active", "done", "True", "1"], said.stderr
    assert said.stderr == ""


@pytest.mark.lab
def test_without_systemd() -> None:
    script = (
        "from opsctl.deadline import Deadline\n"
        "from opsctl.errors import UnfitError\n"
        "from opsctl.host import connect\n"
        "from opsctl.playbook.models import HostEntry\n"
        "try:\n"
        "    connect('here', HostEntry(transport='local'), deadline=Deadline(20, 'connect')).systemd()\n"
        "except UnfitError as error:\n"
        "    print(error)\n"
    )
    # A /run of its own: where this machine runs systemd, that is not seen in there.
    hide = 'mount -t tmpfs none /run && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", script]
    said = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "does not run systemd" in said.stdout, said.stderr
