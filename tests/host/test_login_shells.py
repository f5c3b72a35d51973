"""Login shells that print, read or replace themselves: a program's own output arrives, or the cause is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from opsctl.errors import CommandFailed
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.lab import Lab
from opsctl.lab.spec import HostSpec
from tests.host.conftest import limit
from tests.host.test_quoting import NASTY

pytestmark = pytest.mark.lab

GREETING = "echo '(base) conda activated'; echo 'sudo: a password is required' >&2; printf 'no end of line'\n"
START_FILES = {"bash": "/root/.bashrc", "zsh": "/root/.zshenv", "fish": "/root/.config/fish/config.fish"}


@pytest.fixture(scope="module")
def shells(lab: Lab) -> Iterator[LabHost]:
    """A host that runs this machine's own system: the shells are installed there."""
    host = lab.up("shells", HostSpec())
    yield host
    lab.down(host.name)


def log_in_with(lab_host: LabHost, shell: str, start_file: str) -> None:
    lab_host.exec("usermod", "-s", f"/usr/bin/{shell}", "root")
    lab_host.write_file(START_FILES[shell], start_file)


@pytest.mark.parametrize(
    ("shell", "start_file"),
    [
        ("bash", GREETING),
        ("zsh", GREETING),
        ("fish", GREETING),
        ("bash", f"set -x\ntrap 'echo goodbye' EXIT\n{GREETING}"),
        ("zsh", f"setopt xtrace\nzshexit() {{ echo goodbye; }}\n{GREETING}"),
    ],
)
def test_what_a_login_shell_prints_is_not_the_programs_output(
    shells: LabHost, reach: Callable[..., Host], shell: str, start_file: str
) -> None:
    log_in_with(shells, shell, start_file)
    host = reach(shells)
    done = host.run(["sh", "-c", "cat; echo oops >&2; exit 3"], stdin=b"in\0put", check=False, deadline=limit())
    assert (done.stdout, done.stderr, done.exit_status) == (b"in\0put", b"oops\n", 3)
    done = host.run(["printf", "%s\\0", *NASTY], deadline=limit())
    assert done.stdout.split(b"\0")[:-1] == [word.encode() for word in NASTY]
    data = bytes(range(256)) * 4096
    host.write_file("/root/data", data, deadline=limit())
    assert host.read_file("/root/data", deadline=limit()) == data
    assert host.systemd().status("ssh", deadline=limit()).active


@pytest.mark.parametrize("start_file", ["exec zsh\n", "exit 0\n"])
def test_a_start_file_that_replaces_the_shell_is_named_and_gets_no_input(
    shells: LabHost, reach: Callable[..., Host], start_file: str
) -> None:
    log_in_with(shells, "bash", start_file)
    for use in (
        lambda: reach(shells).run(["true"], deadline=limit()),
        lambda: reach(shells).systemd(),
        lambda: reach(shells).run(["cat"], stdin=b"touch /root/commanded\n", deadline=limit(40)),
    ):
        with pytest.raises(CommandFailed, match="ended before it started the program") as raised:
            use()
        assert "~/.bashrc" in (raised.value.hint or "")
        assert "`exec`" in (raised.value.hint or "")
    assert not shells.exists("/root/commanded")


def test_a_start_file_that_reads_the_input_is_named(shells: LabHost, reach: Callable[..., Host]) -> None:
    log_in_with(shells, "bash", "echo 'Which project?'\nread project\n")
    host = reach(shells)
    assert host.run(["echo", "fine"], deadline=limit()).text == "fine", "its input has ended"
    for use in (lambda: reach(shells).systemd(), lambda: host.run(["cat"], stdin=b"in\n", deadline=limit(40))):
        began = time.monotonic()
        with pytest.raises(CommandFailed, match="waits for input") as raised:
            use()
        assert time.monotonic() - began < 30
        assert "`read`" in (raised.value.hint or "")
        assert "Which project?" in (raised.value.seen or "")


def test_a_login_without_a_shell(shells: LabHost, reach: Callable[..., Host]) -> None:
    shells.exec("usermod", "-s", "/usr/sbin/nologin", "root")
    with pytest.raises(CommandFailed, match="runs no programs for this login"):
        reach(shells).run(["true"], deadline=limit())
