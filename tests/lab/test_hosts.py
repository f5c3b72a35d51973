"""Lab hosts, on real ones."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from opsctl.errors import OpsctlError
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec, SeedFile
from tests.labfixtures import MakeLabHost

pytestmark = pytest.mark.lab


def ssh(host: LabHost, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(host.ssh_argv(*command), capture_output=True, text=True, check=False, timeout=20)


def answers(host: LabHost, seconds: float) -> bool:
    """Whether sshd says something within a time."""
    try:
        with socket.create_connection((host.address, 22), timeout=seconds) as link:
            return link.recv(4) == b"SSH-"
    except OSError:
        return False


def test_it_is_a_host_of_its_own(lab_host: LabHost) -> None:
    assert lab_host.systemctl("is-system-running") == "running"
    assert lab_host.exec("cat", "/proc/1/comm").stdout == "systemd\n"
    assert lab_host.exec("hostname").stdout.strip() == lab_host.name
    assert lab_host.exec("cat", "/proc/sys/kernel/random/boot_id").stdout.strip() == lab_host.boot_id
    assert lab_host.boot_id != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert float(lab_host.exec("cat", "/proc/uptime").stdout.split()[0]) < 120
    assert lab_host.exec("busctl", "list", "--no-legend").stdout.count("org.freedesktop.systemd1") >= 1


def test_ssh_logs_in_with_the_key_checked(lab_host: LabHost) -> None:
    done = ssh(lab_host, "id", "-un")
    assert (done.stdout, done.returncode) == ("root\n", 0)


def test_what_it_writes_does_not_reach_this_machine(lab_host: LabHost) -> None:
    lab_host.write_file("/usr/local/bin/from-a-lab-host", "#!/bin/sh\necho here\n", 0o755)
    assert lab_host.exec("from-a-lab-host").stdout == "here\n"
    assert not Path("/usr/local/bin/from-a-lab-host").exists()
    lab_host.write_file("/dev/shm/from-a-lab-host", "x")
    assert not Path("/dev/shm/from-a-lab-host").exists()


def test_it_cannot_set_the_clock_that_it_shares(lab_host: LabHost) -> None:
    for done in (lab_host.exec("date", "-s", "@0", check=False), ssh(lab_host, "date", "-s", "@0")):
        assert done.returncode != 0
        assert "Operation not permitted" in done.stderr
    assert time.time() > 1e9


def test_units_of_two_hosts_are_apart(lab_host: LabHost, fresh_lab_host: LabHost) -> None:
    """Both systemds have a system.slice: stopping a unit in one must not see the other's processes."""
    for host in (lab_host, fresh_lab_host):
        host.exec("systemd-run", "--unit=twin", "sleep", "1000")
    lab_host.systemctl("stop", "twin.service")
    assert fresh_lab_host.systemctl("is-active", "twin.service") == "active"
    pids = fresh_lab_host.exec("cat", "/sys/fs/cgroup/system.slice/twin.service/cgroup.procs").stdout
    assert len(pids.split()) == 1


def test_power_cut_keeps_the_disk_and_nothing_else(fresh_lab_host: LabHost) -> None:
    host = fresh_lab_host
    before = host.boot_id
    host.write_file("/var/lib/kept", "kept")
    host.write_file("/run/lost", "lost")
    host.exec("systemd-run", "--unit=gone", "sleep", "1000")
    host.reboot()
    assert host.boot_id != before
    assert host.read_file("/var/lib/kept") == "kept"
    assert not host.exists("/run/lost")
    assert host.systemctl("is-active", "gone.service", check=False) == "inactive"
    assert before.replace("-", "") in host.exec("journalctl", "--list-boots").stdout  # the journal is on disk


def test_cable(fresh_lab_host: LabHost) -> None:
    assert answers(fresh_lab_host, 2)
    fresh_lab_host.cut()
    assert not answers(fresh_lab_host, 0.5)
    assert fresh_lab_host.systemctl("is-active", "ssh.service") == "active"
    fresh_lab_host.heal()
    assert answers(fresh_lab_host, 5)


def test_full_and_read_only_disk(make_lab_host: MakeLabHost) -> None:
    host = make_lab_host(HostSpec(disk="64M"))
    host.fill_disk()
    assert "No space left" in host.exec("dd", "if=/dev/zero", "of=/var/lib/more", "count=9", check=False).stderr
    host.write_file("/run/still", "works")
    host.free_disk()
    host.write_file("/var/lib/more", "fits")
    host.read_only()
    assert "Read-only" in host.exec("sh", "-c", "echo more >/var/lib/more", check=False).stderr
    host.reboot()
    host.write_file("/var/lib/more", "fits again")


def test_a_user_with_sudo_a_user_without_and_linger(make_lab_host: MakeLabHost) -> None:
    able = make_lab_host(HostSpec(login="ops", linger=("ops",)))
    assert ssh(able, "sudo", "-n", "id", "-un").stdout == "root\n"
    assert ssh(able, "systemctl", "--user", "is-system-running").stdout == "running\n"
    unable = make_lab_host(HostSpec(login="ops", sudo=False))
    refused = ssh(unable, "sudo", "-n", "id")
    assert refused.returncode != 0
    assert "password is required" in refused.stderr


def test_a_host_that_lacks_programs_and_has_files(make_lab_host: MakeLabHost) -> None:
    spec = HostSpec(remove=("/usr/bin/systemd-stdio-bridge",), files={"/etc/lab-mark": SeedFile("mark\n", 0o640)})
    host = make_lab_host(spec)
    assert ssh(host, "systemd-stdio-bridge").returncode == 127
    assert host.exec("stat", "-c", "%a", "/etc/lab-mark").stdout == "640\n"
    assert Path("/usr/bin/systemd-stdio-bridge").exists()


def test_a_host_without_systemd(make_lab_host: MakeLabHost) -> None:
    host = make_lab_host(HostSpec(init="sshd"))
    assert ssh(host, "cat", "/proc/1/comm").stdout == "sshd\n"
    assert ssh(host, "systemctl", "status").returncode != 0


def test_a_reinstalled_host_has_another_key(fresh_lab_host: LabHost) -> None:
    fresh_lab_host.new_host_key()
    refused = ssh(fresh_lab_host, "true")
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_older_host_keys(make_lab_host: MakeLabHost, kind: str) -> None:
    host = make_lab_host(HostSpec(host_key=kind))  # type: ignore[arg-type]
    assert kind in host.host_key_line
    assert ssh(host, "true").returncode == 0


def test_errors_name_host_and_cause(lab_host: LabHost, fresh_lab_host: LabHost) -> None:
    with pytest.raises(OpsctlError, match="ended with status 2") as failed:
        lab_host.exec("ls", "/no/such/folder")
    assert failed.value.where == f"lab host {lab_host.name}"
    assert "No such file" in (failed.value.seen or "")
    fresh_lab_host.off()
    with pytest.raises(OpsctlError, match="is off"):
        fresh_lab_host.exec("true")
