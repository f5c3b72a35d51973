"""What is promised of a host over every link: running programs, sudo, reconnecting."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from opsctl.errors import CommandFailed, DeadlineExceeded, HostRebooted, PrivilegeMissing, UnfitError
from opsctl.host.machine import ConnectedHost
from opsctl.host.protocol import Host
from opsctl.host.systemctl import CommandSystemd
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from tests.host.conftest import limit
from tests.host.test_quoting import NASTY
from tests.labfixtures import MakeLabHost

pytestmark = pytest.mark.lab


def test_arguments_arrive_as_they_are(either: Host) -> None:
    done = either.run(["printf", "%s\\0", *NASTY], deadline=limit())
    assert done.stdout.split(b"\0")[:-1] == [word.encode() for word in NASTY]


def test_input_environment_and_status(either: Host) -> None:
    script = 'cat; printf %s "$FOO"; echo oops >&2; exit 3'
    done = either.run(["sh", "-c", script], stdin=b"in\0put", env={"FOO": "a 'b' $c"}, check=False, deadline=limit())
    assert done.stdout == b"in\0puta 'b' $c"
    assert done.stderr == b"oops\n"
    assert done.exit_status == 3
    assert done.seconds > 0


def test_a_failure_says_what_ran_and_what_it_said(either: Host) -> None:
    with pytest.raises(CommandFailed, match="status 3") as caught:
        either.run(["sh", "-c", "echo the reason >&2; exit 3"], deadline=limit())
    assert caught.value.exit_status == 3
    assert caught.value.seen == "the reason"


def test_no_such_program(either: Host) -> None:
    with pytest.raises(CommandFailed) as caught:
        either.run(["no-such-program"], deadline=limit())
    assert caught.value.exit_status == 127


def test_standard_input_is_closed_and_is_no_terminal(either: Host) -> None:
    assert either.run(["cat"], deadline=limit()).stdout == b""
    assert either.run(["test", "-t", "0"], check=False, deadline=limit()).exit_status == 1


def test_both_streams_may_be_large_with_a_large_input(either: Host) -> None:
    data = bytes(range(256)) * 16384  # 4 MiB, twice SSH's window
    script = "head -c 5000000 /dev/zero >&2 & cat; wait"
    done = either.run(["sh", "-c", script], stdin=data, deadline=limit(60))
    assert done.stdout == data
    assert len(done.stderr) == 5_000_000


def test_a_program_that_does_not_read_its_input(either: Host) -> None:
    done = either.run(["sh", "-c", "exec <&-; echo done"], stdin=b"x" * 8_000_000, deadline=limit(60))
    assert done.text == "done"


def test_the_deadline_ends_it_here_and_on_the_host(either: Host) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        either.run(["sleep", "987"], deadline=limit(0.5))
    assert time.monotonic() - started < 2
    wait = limit(15)
    while either.run(["pgrep", "-fx", "sleep 987"], check=False, become=False, deadline=limit()).exit_status == 0:
        wait.check(seen="it still runs on the host")


def test_what_it_had_said_is_in_the_error(either: Host) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        either.run(["sh", "-c", "echo waiting for the disk >&2; sleep 60"], deadline=limit(1.0))
    assert caught.value.seen == "waiting for the disk"


def test_threads_share_a_host(either: Host) -> None:
    def one(number: int) -> str:
        return either.run(["echo", str(number)], deadline=limit(60)).text

    with ThreadPoolExecutor(16) as pool:  # more than sshd's MaxSessions
        assert list(pool.map(one, range(24))) == [str(number) for number in range(24)]


def test_where_runs_lie(host: Host) -> None:
    assert host.state_dir == "/var/lib/opsctl"


def test_the_boot_id_is_the_hosts(host: Host, lab_host: LabHost) -> None:
    assert host.boot_id(deadline=limit()) == lab_host.boot_id


def test_a_reboot_is_noticed_once(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    host.reconnect(deadline=limit())
    fresh_lab_host.reboot()
    with pytest.raises(HostRebooted) as caught:
        host.reconnect(deadline=limit())
    assert fresh_lab_host.boot_id in (caught.value.seen or "")
    host.reconnect(deadline=limit())
    assert host.systemd().status("ssh", deadline=limit()).active


def test_a_link_that_a_reboot_broke_is_lost_in_time(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    threading.Timer(0.3, fresh_lab_host.off).start()
    started = time.monotonic()
    with pytest.raises(Exception, match="lost"):
        host.run(["sleep", "100"], deadline=limit(60))
    assert time.monotonic() - started < 15


OPS = HostSpec(login="ops", linger=("ops",))


class TestBecome:
    def test_with_sudo(self, make_lab_host: MakeLabHost, reach: Callable[..., Host]) -> None:
        lab_host = make_lab_host(OPS)
        host = reach(lab_host, become=True)
        assert host.run(["id", "-un"], deadline=limit()).text == "root"
        assert host.run(["id", "-un"], become=False, deadline=limit()).text == "ops"
        done = host.run(["sh", "-c", 'printf %s "$A"; exit 1'], env={"A": "x y"}, check=False, deadline=limit())
        assert (done.stdout, done.exit_status) == (b"x y", 1), "sudo keeps streams and status clean"
        host.write_file("/root/of/root", b"secret", mode=0o600, deadline=limit())
        assert host.read_file("/root/of/root", deadline=limit()) == b"secret"
        assert host.run(["stat", "-c", "%U %a", "/root/of/root"], deadline=limit()).text == "root 600"
        assert host.systemd().status("ssh", deadline=limit()).active
        assert host.systemd().stop("systemd-logind.service", deadline=limit()).result == "done"

    def test_without_sudo(self, make_lab_host: MakeLabHost, reach: Callable[..., Host]) -> None:
        lab_host = make_lab_host(HostSpec(login="ops", sudo=False))
        host = reach(lab_host, become=True)
        with pytest.raises(PrivilegeMissing, match="sudo -n was refused") as caught:
            host.run(["true"], deadline=limit())
        assert "NOPASSWD" in (caught.value.hint or "")
        with pytest.raises(PrivilegeMissing):
            host.systemd()
        plain = reach(lab_host)
        assert plain.systemd().status("ssh", deadline=limit()).active, "reading needs no rights"
        with pytest.raises(PrivilegeMissing, match="refused"):
            plain.systemd().stop("ssh.service", deadline=limit())

    def test_a_program_that_fails_under_sudo_is_not_called_a_refusal(
        self, make_lab_host: MakeLabHost, reach: Callable[..., Host]
    ) -> None:
        host = reach(make_lab_host(OPS), become=True)
        with pytest.raises(CommandFailed) as caught:
            host.run(["sh", "-c", "echo my password is wrong >&2; exit 1"], deadline=limit())
        assert caught.value.exit_status == 1
        with pytest.raises(CommandFailed):
            host.run(["no-such-program"], deadline=limit())

    def test_a_host_without_sudo_at_all(self, make_lab_host: MakeLabHost, reach: Callable[..., Host]) -> None:
        host = reach(make_lab_host(HostSpec(login="ops", remove=("/usr/bin/sudo",))), become=True)
        with pytest.raises(PrivilegeMissing):
            host.run(["true"], deadline=limit())


def test_user_scope(make_lab_host: MakeLabHost, reach: Callable[..., Host]) -> None:
    lab_host = make_lab_host(OPS)
    host = reach(lab_host, scope="user")
    assert host.state_dir == "/home/ops/.local/state/opsctl"
    assert host.run(["systemctl", "--user", "is-active", "default.target"], deadline=limit()).text == "active"
    systemd = host.systemd()
    unit = "[Service]\nExecStart=/bin/sleep 1000\n"
    host.write_file("/home/ops/.config/systemd/user/mine.service", unit.encode(), deadline=limit())
    systemd.daemon_reload(deadline=limit())
    assert systemd.start("mine", deadline=limit()).result == "done"
    status = systemd.status("mine", deadline=limit())
    assert status.active
    assert "user@" in status.control_group
    assert systemd.stop("mine", deadline=limit()).result == "done"


def test_a_host_without_systemd_is_unfit(make_lab_host: MakeLabHost, reach: Callable[..., Host]) -> None:
    host = reach(make_lab_host(HostSpec(init="sshd")))
    assert host.run(["echo", "still", "a", "host"], deadline=limit()).text == "still a host"
    with pytest.raises(UnfitError, match="does not run systemd"):
        host.systemd()


def test_a_host_without_the_bridge_is_unfit(make_lab_host: MakeLabHost, reach: Callable[..., Host]) -> None:
    host = reach(make_lab_host(HostSpec(remove=("/usr/bin/systemd-stdio-bridge",))))
    with pytest.raises(UnfitError, match="no systemd-stdio-bridge"):
        host.systemd()


def test_a_controller_without_glib_uses_commands(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(host, ConnectedHost)
    monkeypatch.setitem(sys.modules, "gi", None)
    systemd = host._open_systemd(None)
    assert isinstance(systemd, CommandSystemd)
    assert systemd.status("ssh", deadline=limit()).active
