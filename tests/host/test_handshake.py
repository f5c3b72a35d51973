"""Agents; what else a handshake can meet is in test_connection.py."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.errors import AuthenticationFailed
from opsctl.host import connect, handshake
from opsctl.lab.hosts import LabHost
from opsctl.playbook.models import HostEntry
from tests.host.conftest import entry_of, limit

pytestmark = pytest.mark.lab


@pytest.fixture
def agent(lab_host: LabHost, tmp_path: Path) -> Iterator[str]:
    """A real ssh-agent that holds the lab's key."""
    sock = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        patience = limit()
        while not Path(sock).exists():
            patience.check(seen="ssh-agent does not listen")
            time.sleep(0.02)
        subprocess.run(
            ["ssh-add", "-q", lab_host.identity_file],
            env={"SSH_AUTH_SOCK": sock, "PATH": "/usr/bin:/bin"},
            check=True,
            capture_output=True,
        )
        yield sock
    finally:
        process.terminate()
        process.wait(5)


def entry(lab_host: LabHost, config: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> HostEntry:
    config.write_text(f"Host *\n{text}")
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", str(config))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return HostEntry(address=lab_host.address, user="root", known_hosts=str(lab_host.known_hosts))


def enters(lab_host: LabHost, reached: HostEntry) -> bool:
    host = connect(lab_host.name, reached, deadline=limit())
    try:
        return host.run(["hostname"], deadline=limit()).text == lab_host.name
    finally:
        host.close()


def test_the_agent_that_ssh_config_names(
    lab_host: LabHost, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert enters(lab_host, entry(lab_host, tmp_path / "c", monkeypatch, f" IdentityAgent {agent}\n"))


def test_the_agent_of_the_environment(
    lab_host: LabHost, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = entry(lab_host, tmp_path / "c", monkeypatch, "")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    assert enters(lab_host, reached)


def test_an_encrypted_file_that_the_agent_has_unlocked(
    lab_host: LabHost, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    shutil.copy(lab_host.identity_file, locked)
    shutil.copy(f"{lab_host.identity_file}.pub", f"{locked}.pub")
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", locked], check=True, capture_output=True)
    text = f" IdentityAgent {agent}\n IdentityFile {locked}\n IdentitiesOnly yes\n"
    assert enters(lab_host, entry(lab_host, tmp_path / "c", monkeypatch, text))


@pytest.mark.parametrize("named", ["key.pub", "key", "locked"])
def test_the_key_that_identity_file_means_is_offered_first(
    lab_host: LabHost, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The agent holds ten more keys than sshd lets anyone try; of ``key`` there is the public half alone."""
    environment = {"SSH_AUTH_SOCK": agent, "PATH": "/usr/bin:/bin"}
    shutil.copy(f"{lab_host.identity_file}.pub", tmp_path / "key.pub")
    shutil.copy(lab_host.identity_file, tmp_path / "locked")
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", tmp_path / "locked"], check=True)
    subprocess.run(["ssh-add", "-q", "-d", lab_host.identity_file], env=environment, check=True)
    for number in range(10):
        other = tmp_path / f"other{number}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
        subprocess.run(["ssh-add", "-q", other], env=environment, check=True)
    subprocess.run(["ssh-add", "-q", lab_host.identity_file], env=environment, check=True)
    for only in ("yes", "no"):
        text = f" IdentityAgent {agent}\n IdentityFile {tmp_path / named}\n IdentitiesOnly {only}\n"
        reached = entry(lab_host, tmp_path / "c", monkeypatch, text)
        assert enters(lab_host, reached)
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", "/dev/null")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    assert enters(lab_host, reached.model_copy(update={"identity_file": str(tmp_path / named)}))


@pytest.mark.parametrize("text", [" IdentityAgent {agent}\n IdentitiesOnly yes\n", " IdentityAgent none\n"])
def test_an_agent_that_may_not_be_asked(
    lab_host: LabHost, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    reached = entry(lab_host, tmp_path / "c", monkeypatch, text.format(agent=agent) + " IdentityFile /absent\n")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    with pytest.raises(AuthenticationFailed):
        connect("x", reached, deadline=limit())


@pytest.fixture
def mute_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent that takes connections and never answers."""
    path = tmp_path / "mute"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        monkeypatch.setattr(handshake, "_AGENT_LIMIT", 1.0)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield path


def test_an_agent_that_hangs_costs_its_limit_where_there_is_a_key_file(lab_host: LabHost, mute_agent: Path) -> None:
    began = time.monotonic()
    host = connect(lab_host.name, entry_of(lab_host), deadline=limit())
    host.close()
    assert time.monotonic() - began < 8


def test_an_agent_that_hangs_is_named_where_there_is_no_other_key(
    lab_host: LabHost, mute_agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n IdentityFile /none\n")
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", str(config))
    began = time.monotonic()
    with pytest.raises(AuthenticationFailed, match="agent does not answer") as raised:
        connect(lab_host.name, entry_of(lab_host, identity_file=None), deadline=limit())
    assert raised.value.where == str(mute_agent)
    assert time.monotonic() - began < 8


INVENTORY = """
hosts: {{h: {{address: 127.0.0.1, port: {port}, user: root}}}}
services: {{p: {{url: "http://127.0.0.1:8000", model: m}}}}
"""
PLAYBOOK = "name: p\nhosts: h\nphases: [{name: a, serve: nothing, steps: [{command: {argv: [/bin/true]}}]}]\n"


@pytest.mark.parametrize("command", [["check", "h"], ["run", "p.yml"], ["doctor", "h"], ["rollback", "h"]])
def test_ctrl_c_ends_a_wait_for_a_banner_within_three_seconds(command: list[str], tmp_path: Path) -> None:
    """A listener that takes connections and never says who it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (tmp_path / "inventory.yml").write_text(INVENTORY.format(port=listener.getsockname()[1]))
        (tmp_path / "p.yml").write_text(PLAYBOOK)
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        process = subprocess.Popen(
            [sys.executable, "-m", "opsctl", *command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        listener.settimeout(60)
        connection, _ = listener.accept()
        with connection:
            time.sleep(0.5)  # into the wait for the banner
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            said, _ = process.communicate(timeout=60)
            took = time.monotonic() - began
    assert process.returncode == 130, said
    assert took < 3, said
