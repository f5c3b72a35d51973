from __future__ import annotations

import socket
from pathlib import Path

import pytest

from opsctl.errors import UnfitError
from opsctl.host.ssh_config import resolve
from opsctl.playbook.models import HostEntry


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    file.write_text("")
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", str(file))
    return file


def test_an_alias_is_followed(config: Path, tmp_path: Path) -> None:
    key = tmp_path / "key of mine"
    key.write_text("")
    config.write_text(
        f'Host gpu1\n HostName 10.9.8.7\n Port 2222\n User ops\n IdentityFile "{key}"\n IdentityFile /absent\n'
        f" IdentitiesOnly yes\n HostKeyAlias the-gpu\n UserKnownHostsFile {tmp_path}/known-%r /two\n"
        " AddressFamily inet6\n",
    )
    route = resolve(HostEntry(address="gpu1"))
    assert (route.hostname, route.port, route.user) == ("10.9.8.7", 2222, "ops")
    assert route.identity_files == (str(key),)
    assert route.identities_only
    assert route.host_key_alias == "the-gpu"
    assert route.family == socket.AF_INET6
    assert route.known_hosts[:2] == (tmp_path / "known-ops", Path("/two"))
    assert route.jump is None
    assert route.where == "ops@10.9.8.7:2222"


def test_the_inventory_goes_before_ssh_config(config: Path) -> None:
    config.write_text("Host gpu1\n Port 2222\n User ops\n IdentityFile /absent\n")
    entry = HostEntry(address="gpu1", user="root", port=22, identity_file="/keys/x", known_hosts="~/k")
    route = resolve(entry)
    assert (route.port, route.user, route.identity_files) == (22, "root", ("/keys/x",))
    assert route.known_hosts == (Path.home() / "k",)


def test_includes_and_match_exec_are_openssh_own(config: Path) -> None:
    (config.parent / "more").write_text("Host gpu1\n HostName 10.1.1.1\n")
    config.write_text(f'Include {config.parent}/more\nMatch host 10.1.1.1 exec "true"\n Port 2200\n')
    route = resolve(HostEntry(address="gpu1"))
    assert (route.hostname, route.port) == ("10.1.1.1", 2200)


def test_jump_hosts_are_resolved_each_by_its_own_settings(config: Path) -> None:
    config.write_text(
        "Host gpu1\n ProxyJump first,me@second:2022\nHost first\n HostName 10.0.0.1\n User one\n"
        "Host second\n HostName 10.0.0.2\n",
    )
    route = resolve(HostEntry(address="gpu1", user="root"))
    second = route.jump
    assert second is not None
    assert second.where == "me@10.0.0.2:2022"
    assert second.jump is not None
    assert second.jump.where == "one@10.0.0.1:22"
    assert second.jump.jump is None


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ("ssh://a@jump:2200", "a@jump:2200"),
        ("jump", "u@jump:22"),
        ("a@[2001:db8::1]:2200", "a@2001:db8::1:2200"),
        ("[2001:db8::1]", "u@2001:db8::1:22"),
        ("a@b@jump", "a@b@jump:22"),
    ],
)
def test_forms_of_a_jump(config: Path, spec: str, where: str) -> None:
    config.write_text(f"Host gpu1\n ProxyJump {spec}\nHost *\n User u\n")
    jump = resolve(HostEntry(address="gpu1", user="root")).jump
    assert jump is not None
    assert jump.where == where


def test_a_proxy_command_gets_its_tokens(config: Path) -> None:
    config.write_text("Host gpu1\n HostName 10.1.1.1\n User ops\n ProxyCommand nc -X %% %h %p %r\n")
    assert resolve(HostEntry(address="gpu1")).proxy_command == "nc -X % 10.1.1.1 22 ops"


def test_a_jump_that_jumps_through_itself_ends(config: Path) -> None:
    config.write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with pytest.raises(UnfitError, match="more than 8 hosts"):
        resolve(HostEntry(address="a"))


@pytest.mark.parametrize("setting", ["BindAddress 10.0.0.1", "KnownHostsCommand /bin/x", "PKCS11Provider /x.so"])
def test_what_matters_and_cannot_be_followed_is_said(config: Path, setting: str) -> None:
    config.write_text(f"Host gpu1\n {setting}\n")
    with pytest.raises(UnfitError, match=r"cannot follow") as caught:
        resolve(HostEntry(address="gpu1"))
    assert caught.value.seen is not None
    assert setting.split()[1] in caught.value.seen


def test_a_broken_config_is_named(config: Path) -> None:
    config.write_text("Host gpu1\n Nonsense yes\n")
    with pytest.raises(UnfitError, match="cannot be used") as caught:
        resolve(HostEntry(address="gpu1"))
    assert "nonsense" in (caught.value.seen or "").lower()


def test_an_address_is_never_an_option(config: Path) -> None:
    with pytest.raises(UnfitError):
        resolve(HostEntry(address="-oProxyCommand=touch /tmp/x"))


def test_without_ssh_a_config_that_is_there_is_not_passed_over(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnfitError, match="no ssh on this machine"):
        resolve(HostEntry(address="gpu1"))


def test_without_ssh_and_config_the_inventory_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPSCTL_SSH_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    route = resolve(HostEntry(address="gpu1", user="ops", port=2022))
    assert (route.where, route.known_hosts) == ("ops@gpu1:2022", (tmp_path / ".ssh" / "known_hosts",))
