"""Nobody but root can switch the guard off or borrow its rights: attacks by a user of the host, and the fence tried."""

from __future__ import annotations

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import NotGuardable
from opsctl.host.guard import control
from opsctl.lab.spec import HostSpec
from tests.guard.site import GUARD, UNIT, Site, until
from tests.labfixtures import as_login

pytestmark = pytest.mark.lab

STATE = "/var/lib/opsctl"


def limit() -> Deadline:
    return Deadline(60, "a call of the guard")


def as_user(site: Site, script: str) -> str:
    """Run a shell script as somebody without rights; return what it printed."""
    site.lab.exec("sh", "-c", "id mallory 2>/dev/null || useradd -m mallory")
    argv = as_login("mallory", "sh", "-c", script)
    return site.lab.exec(*argv, check=False).stdout


def test_what_the_guard_trusts_is_roots_alone(site: Site) -> None:
    site.arm(site.terms(alert=("true",)))
    script = f"stat -c '%U %a %n' {STATE} {STATE}/lock {STATE}/lease.* {STATE}/terms.* {STATE}/log /run/opsctl"
    for line in site.lab.exec("sh", "-c", script).stdout.splitlines():
        owner, mode, name = line.split()
        assert (owner, mode) == ("root", {STATE: "755", "/run/opsctl": "700"}.get(name, "600")), line


@pytest.mark.parametrize("folder", [STATE, "/run/opsctl"])
@pytest.mark.parametrize("attack", ["chown mallory", "chmod 777", "link"])
def test_a_state_folder_that_others_can_change_is_refused(site: Site, folder: str, attack: str) -> None:
    as_user(site, "true")
    if attack == "link":
        site.lab.exec("sh", "-c", f"mv {folder} /home/mallory/state; ln -s /home/mallory/state {folder}")
    else:
        site.lab.exec(*attack.split(), folder)
    with pytest.raises(NotGuardable, match="is not root's alone"):
        site.arm()
    with pytest.raises(NotGuardable, match="is not root's alone"):
        site.install()
    assert site.active()


def test_terms_that_a_user_wrote_run_nothing(site: Site) -> None:
    """The traffic argv of a lease runs as root: one that a user could write is no lease."""
    lease = site.arm(site.terms(ttl=300))
    as_user(site, "true")
    forged = site.terms(traffic=("touch", "/var/tmp/rooted")).encode(control.version()).decode()
    for place in (STATE, "/run/opsctl"):
        site.lab.write_file(f"{place}/terms.{lease.token}", forged)
        site.lab.exec("chown", "mallory", f"{place}/terms.{lease.token}")
    site.guard("break", "bob")
    until(lambda: site.field("result") == "unverified", 30, "a start without terms", seen=site.log)
    assert site.active()
    assert not site.lab.exists("/var/tmp/rooted")


def test_a_user_cannot_hold_the_lock(site: Site) -> None:
    held = as_user(site, f"timeout 600 flock {STATE}/lock sleep 600 && echo held & sleep 0.5; jobs -r")
    assert "flock" not in held.replace("Permission denied", "")
    site.arm()


def test_a_lock_that_a_user_holds_since_before_is_replaced(site: Site) -> None:
    site.lab.exec("chmod", "644", f"{STATE}/lock")
    as_user(site, f"setsid -f flock {STATE}/lock sleep 600 >/dev/null 2>&1 </dev/null; sleep 0.5")
    assert site.lab.exec("flock", "-n", f"{STATE}/lock", "true", check=False).returncode != 0, "the attack works"
    site.install()
    site.arm()


def test_a_state_folder_given_away_under_a_lease_does_not_stop_the_restore(site: Site) -> None:
    """chown -R by an administrator: what /run holds is root's still."""
    lease = site.arm(site.terms(ttl=4))
    site.variant(lease.token)
    as_user(site, "true")
    site.lab.exec("chown", "-R", "mallory", STATE)
    site.lab.exec("sh", "-c", "until systemctl -q is-active production; do sleep 0.2; done", timeout=40)
    assert site.active(UNIT)


def test_the_fence_is_tried_for_real(site: Site) -> None:
    assert control.try_fence(site.host, deadline=limit()) is None
    assert site.lab.systemctl("list-units", "--all", "--plain", "--no-legend", "opsctl-drill*") == ""


def test_a_fence_that_does_not_hold_is_seen(site: Site) -> None:
    """As on systemd 247, where an option was unknown: the kill fails, and nothing died."""
    broken = (
        '#!/bin/sh\ncase "$*" in *kill*) echo "unrecognized option" >&2; exit 1 ;; esac\nexec /usr/bin/systemctl "$@"\n'
    )
    site.lab.write_file("/usr/local/bin/systemctl", broken, 0o755)
    seen = control.try_fence(site.host, deadline=limit())
    assert seen is not None
    assert "the fence does not hold" in seen
    assert "unrecognized option" in seen


def test_a_session_that_survives_its_kill_is_said_and_alerted(site: Site) -> None:
    alert = ("sh", "-c", 'test "$1" = --test || cat >>/var/tmp/called', "alert")
    lease = site.arm(site.terms(ttl=300, alert=alert))
    site.lab.exec("sh", "-c", f"setsid -f sh {GUARD} exec {lease.token} sleep 600 >/dev/null 2>&1 </dev/null")
    broken = '#!/bin/sh\ncase "$*" in *kill*) echo refused >&2; exit 1 ;; esac\nexec /usr/bin/systemctl "$@"\n'
    site.lab.write_file("/usr/local/bin/systemctl", broken, 0o755)
    site.guard("break", "bob")
    site.await_closed(60)
    assert site.active()
    assert "the fence: cannot kill opsctl-session-*.scope: refused" in site.log()
    until(lambda: site.lab.exists("/var/tmp/called"), 20, "the alert", seen=site.log)
    assert "a session survived its kill" in site.lab.read_file("/var/tmp/called")


def test_a_root_scope_guard_refuses_a_users_state(make_site: object) -> None:
    site = make_site(spec=HostSpec(), guarded=False)  # type: ignore[operator]
    as_user(site, "true")
    site.lab.exec("install", "-d", "-o", "mallory", STATE)
    with pytest.raises(NotGuardable, match="is not root's alone"):
        site.install()


def test_a_users_held_state_is_refused_by_naming_the_lease(site: Site) -> None:
    site.arm()
    as_user(site, "true")
    site.lab.exec("chown", "mallory", STATE)
    with pytest.raises(NotGuardable, match=r"as mallory.*opsctl lease show HOST") as refused:
        site.show()
    assert "rm " not in str(refused.value)
