"""Agents; what else a handshake can meet is in test_connection.py."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.errors import AuthenticationFailed
from opsctl.host import connect
from opsctl.lab.hosts import LabHost
from opsctl.playbook.models import HostEntry
from tests.host.conftest import limit

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


@pytest.mark.parametrize("text", [" IdentityAgent {agent}\n IdentitiesOnly yes\n", " IdentityAgent none\n"])
def test_an_agent_that_may_not_be_asked(
    lab_host: LabHost, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    reached = entry(lab_host, tmp_path / "c", monkeypatch, text.format(agent=agent) + " IdentityFile /absent\n")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    with pytest.raises(AuthenticationFailed):
        connect("x", reached, deadline=limit())
