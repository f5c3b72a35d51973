"""Who may guard a host: root, a user with sudo, a user with linger and a state folder. The rest are told why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import HostHeld, NotGuardable
from opsctl.host.guard import control, guard_argv, holds_condition
from opsctl.lab.spec import HostSpec
from tests.guard.site import SERVER, Site, server_unit, until
from tests.labfixtures import as_login

pytestmark = pytest.mark.lab

OPS = HostSpec(login="ops", linger=("ops",), sudo=False)


def limit() -> Deadline:
    return Deadline(30, "a call of the guard")


def as_ops(site: Site, *command: str, check: bool = True) -> str:
    """Run something as that user, in the user's own session."""
    return site.lab.exec(*as_login("ops", *command), check=check).stdout.rstrip("\n")


@pytest.fixture
def user_site(make_site: Callable[..., Site]) -> Site:
    """Return a host whose services are one user's own, with production serving there."""
    site = make_site(spec=OPS, scope="user", guarded=False, serve=False)
    site.lab.exec("install", "-d", "-o", "ops", "/var/lib/opsctl")
    site.lab.write_file("/usr/local/bin/server.py", SERVER)
    site.lab.exec("install", "-d", "-o", "ops", "/home/ops/.config/systemd/user")
    for name in (".config", ".config/systemd"):
        site.lab.exec("chown", "ops", f"/home/ops/{name}")
    site.lab.write_file("/home/ops/.config/systemd/user/production.service", server_unit("kimi"))
    site.lab.exec("chmod", "777", "/run")  # the test's server keeps its lock there
    until(
        lambda: as_ops(site, "systemctl", "--user", "is-system-running", check=False) == "running", 20, "ops's systemd"
    )
    as_ops(site, "systemctl", "--user", "daemon-reload")
    as_ops(site, "systemctl", "--user", "start", "production.service")
    site.await_holder("kimi")
    site.install()
    return site


def user_active(site: Site, unit: str) -> bool:
    return as_ops(site, "systemctl", "--user", "is-active", unit, check=False) == "active"


def test_user_scope_restores_with_nobody_logged_in(user_site: Site) -> None:
    lease = user_site.arm(user_site.terms(ttl=3))
    assert user_site.show().scope == "user"
    assert control.holds(user_site.host, lease.token, deadline=limit())
    as_ops(user_site, "systemctl", "--user", "stop", "production.service")
    user_site.host.close()
    until(lambda: user_active(user_site, "production.service"), 30, "the user's guard")
    again = Site.build(user_site.lab, scope="user")
    try:
        until(lambda: again.show().state == "closed", 30, "the close", seen=lambda: again.show().describe())
        assert (again.show().closed_by, again.show().result) == ("guard", "verified")
    finally:
        again.host.close()


def test_user_scope_survives_a_power_cut(user_site: Site) -> None:
    user_site.arm()
    user_site.host.close()
    user_site.lab.reboot()
    user_site.lab.exec("chmod", "777", "/run")
    until(lambda: user_active(user_site, "production.service"), 40, "the user's guard after boot")


def test_the_fence_holds_in_user_scope_too(user_site: Site) -> None:
    lease = user_site.arm()
    argv = guard_argv(user_site.entry, "exec", str(lease.token), "echo", "let through")
    assert user_site.host.run(argv, deadline=limit()).text == "let through"
    control.break_(user_site.host, by="bob", deadline=limit())
    done = user_site.host.run(argv, deadline=limit(), check=False)
    assert done.exit_status == 7


def test_one_lock_a_host_whatever_the_scope(user_site: Site) -> None:
    """Root trusts no state of a user's (law 3), so it neither takes over nor breaks a lease that a user holds."""
    lease = user_site.arm()
    guard = "/home/ops/.local/lib/opsctl/opsctl-guard"
    unit = "/home/ops/.config/systemd/user/opsctl-guard.service"
    refused = user_site.lab.exec("sh", guard, "break", "root", check=False)
    assert refused.returncode == 2
    assert "is not root's alone" in refused.stderr
    terms = "run=r2\nholder=root\nttl=60\n"
    install = user_site.lab.exec("sh", guard, "install", unit, check=False)
    assert install.returncode == 2
    user_site.lab.write_file("/etc/systemd/system/opsctl-guard.service", "[Service]\nExecStart=/bin/true\n")
    armed = user_site.lab.exec("sh", guard, "arm", stdin=terms, check=False)
    assert armed.returncode == 2
    assert "is not root's alone" in armed.stderr
    control.renew(user_site.host, lease, deadline=limit())


def test_become_arms_as_root(make_site: Callable[..., Site]) -> None:
    site = make_site(spec=HostSpec(login="ops"), become=True)
    lease = site.arm(site.terms(ttl=2))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()


@pytest.mark.parametrize(
    ("spec", "scope", "prepare", "said"),
    [
        (HostSpec(login="ops", sudo=False), "system", "", "needs root"),
        (HostSpec(login="ops", sudo=False), "user", "install -d -o ops /var/lib/opsctl", "no linger"),
        (OPS, "user", "", "as root, once: install -d -o ops /var/lib/opsctl"),
        (OPS, "user", "install -d /var/lib/opsctl", "cannot be written by ops"),
    ],
)
def test_a_host_that_cannot_be_guarded_says_why(
    make_site: Callable[..., Site], spec: HostSpec, scope: str, prepare: str, said: str
) -> None:
    site = make_site(spec=spec, scope=scope, guarded=False, serve=False)
    if prepare:
        site.lab.exec("sh", "-c", prepare)
    with pytest.raises(NotGuardable) as caught:
        site.install()
    assert said in str(caught.value)
    assert caught.value.exit_code == 2
    assert control.show(site.host, deadline=limit()) is None


def test_a_read_only_host_cannot_be_guarded(make_site: Callable[..., Site]) -> None:
    site = make_site(guarded=False)
    site.lab.read_only()
    with pytest.raises(NotGuardable):
        site.install()


def test_somebody_elses_lease_is_named_over_ssh(site: Site) -> None:
    site.arm()
    other = Site.build(site.lab)
    try:
        with pytest.raises(HostHeld, match="held by alice@laptop"):
            other.arm(site.terms(run="other"))
    finally:
        other.host.close()


def test_conditions_name_the_installed_guard(site: Site) -> None:
    """What a variant's unit asks is what the host has."""
    lease = site.arm()
    words = holds_condition(site.entry, lease.token).split()
    assert site.lab.exec(*words, check=False).returncode == 0
    assert site.lab.exec(*words[:-1], "99", check=False).returncode == 1
