"""The lease on a real systemd: one holder, tokens, deadlines, the fence, and the order in which it is armed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import HostHeld, LeaseError, LeaseLost, NotGuardable, UnfitError
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease
from tests.guard.site import GUARD, Site, until

pytestmark = pytest.mark.lab


def limit() -> Deadline:
    return Deadline(30, "a call of the guard")


def test_arm_renew_release(site: Site) -> None:
    lease = site.arm()
    assert lease.token == 1
    assert 298 <= lease.remaining <= 300
    assert not lease.silent
    assert site.lab.systemctl("is-enabled", "opsctl-guard.service") == "enabled"
    assert control.holds(site.host, 1, deadline=limit())
    assert control.renew(site.host, lease, deadline=limit()).remaining >= 299
    view = control.release(site.host, lease, deadline=limit())
    assert (view.state, view.closed_by, view.result) == ("closed", "alice@laptop", "verified")
    assert not control.holds(site.host, 1, deadline=limit())
    until(lambda: not site.active("opsctl-guard.service"), 10, "the end of the guard's loop")
    assert site.lab.systemctl("is-enabled", "opsctl-guard.service", check=False) == "disabled"
    assert "lease closed by alice@laptop" in site.log()


def test_a_second_holder_is_refused_with_who_since_and_until(site: Site) -> None:
    site.arm()
    with pytest.raises(HostHeld) as caught:
        site.arm(site.terms(run="r2"))
    text = "\n".join(caught.value.lines())
    assert "alice@laptop" in text
    assert "since 20" in text
    assert "until" in text
    assert caught.value.exit_code == 4
    assert site.field("run") == "r1"


def test_arming_twice_with_the_same_terms_is_one_lease(site: Site) -> None:
    """A controller whose link broke before the answer came asks again."""
    first = site.arm()
    assert site.arm().token == first.token
    with pytest.raises(HostHeld):
        site.arm(site.terms(ttl=301))


def test_a_controller_that_dies_while_it_arms_leaves_a_lease_that_ends(site: Site) -> None:
    """Nobody reads what the guard says any more: its first word must not be its last."""
    site.lab.write_file("/run/terms", site.terms(ttl=3).encode(control.version()).decode())
    site.lab.exec("sh", "-c", f"sh {GUARD} arm </run/terms 2>&1 | :")
    until(lambda: site.field("state") != "none", 10, "the lease")
    site.await_closed()
    site.assert_restored()


def test_a_lease_that_nobody_watches_is_seen_and_ended(site: Site) -> None:
    """The guard died between the lease and its first look: whoever comes next starts it."""
    site.arm(site.terms(ttl=3))
    site.lab.systemctl("stop", "opsctl-guard.service")
    site.lab.exec("rm", "-f", "/run/opsctl/tick", "/etc/systemd/system/multi-user.target.wants/opsctl-guard.service")
    view = site.show()
    assert (view.state, view.watched) == ("held", False)
    with pytest.raises(HostHeld, match="held by alice@laptop") as caught:
        control.refuse_held(site.host, deadline=limit())
    assert "NO guard watches it; it was started" in (caught.value.seen or "")
    site.await_closed()
    site.assert_restored()


@pytest.mark.parametrize("token", [0, 2, 99])
def test_a_wrong_token_can_do_nothing(site: Site, token: int) -> None:
    lease = site.arm()
    wrong = Lease(token, lease.run, lease.ttl, lease.boot_id, lease.remaining)
    assert not control.holds(site.host, token, deadline=limit())
    for act in (control.renew, control.release):
        with pytest.raises(LeaseLost, match="held by alice@laptop"):
            act(site.host, wrong, deadline=limit())
    refused = site.lab.exec("sh", GUARD, "session", str(token), check=False)
    assert refused.returncode == 7
    assert site.field("state") == "held"


def test_tokens_grow_over_leases_and_reboots(site: Site) -> None:
    first = site.arm()
    control.release(site.host, first, deadline=limit())
    second = site.arm(site.terms(run="r2"))
    assert second.token > first.token
    control.release(site.host, second, deadline=limit())
    site.lab.reboot()
    site.host = Site.build(site.lab).host
    site.lab.systemctl("start", site.service.unit)
    third = site.arm(site.terms(run="r3"))
    assert third.token > second.token


def test_release_is_refused_while_production_is_down(site: Site) -> None:
    lease = site.arm()
    site.lab.systemctl("stop", site.service.unit)
    with pytest.raises(LeaseError, match="inactive"):
        control.release(site.host, lease, deadline=limit())
    assert site.field("state") == "held"


def test_expiry_restores_and_says_who_did_what_when(site: Site) -> None:
    lease = site.arm(site.terms(ttl=2))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()
    with pytest.raises(LeaseLost) as caught:
        control.renew(site.host, lease, deadline=limit())
    text = "\n".join(caught.value.lines())
    assert "closed by guard at 20" in text
    assert "not renewed for 2 s" in text


def test_an_expired_lease_is_refused_before_the_guard_has_looked(site: Site) -> None:
    """Expiry is a matter of the deadline, not of when the guard comes round."""
    lease = site.arm(site.terms(ttl=2))
    site.lab.systemctl("kill", "--signal=STOP", "opsctl-guard.service")
    until(lambda: not control.holds(site.host, lease.token, deadline=limit()), 10, "the deadline")
    assert site.field("state") == "held"
    with pytest.raises(LeaseLost):
        control.renew(site.host, lease, deadline=limit())
    site.lab.systemctl("kill", "--signal=CONT", "opsctl-guard.service")
    site.await_closed()


def session(site: Site, token: int) -> subprocess.Popen[bytes]:
    """Start a session's bridge and see it speak: D-Bus's own first words."""
    process = subprocess.Popen(
        site.lab.exec_argv("sh", GUARD, "session", str(token)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\0AUTH EXTERNAL\r\nDATA\r\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"DATA\r\n"
    assert process.stdout.readline().startswith(b"OK ")
    return process


def closed(process: subprocess.Popen[bytes]) -> bool:
    with process:
        assert process.stdin is not None
        process.stdin.close()
    return process.returncode != 0


def test_the_fence_kills_the_session(site: Site) -> None:
    lease = site.arm(site.terms(ttl=2))
    process = session(site, lease.token)
    assert process.wait(20) != 0
    assert closed(process)
    assert site.field("token") == "2"
    site.await_closed()


def test_a_session_that_comes_late_is_refused_from_inside_its_scope(site: Site) -> None:
    """The guard fences between the first look at the token and the making of the scope."""
    lease = site.arm()
    site.guard("break", "bob")
    late = site.lab.exec("sh", GUARD, "_inside", str(lease.token), "touch", "/var/tmp/too-late", check=False)
    assert late.returncode == 7
    assert not site.lab.exists("/var/tmp/too-late")


def test_a_new_session_ends_the_one_before(site: Site) -> None:
    """What a dead link still has in flight must not arrive after what the new one sends."""
    lease = site.arm()
    old = session(site, lease.token)
    new = session(site, lease.token)
    assert old.wait(10) != 0
    assert closed(old)
    assert new.poll() is None
    assert site.lab.exec("sh", GUARD, "exec", str(lease.token), "echo", "x").stdout == "x\n"
    assert new.poll() is None
    control.release(site.host, lease, deadline=limit())
    assert new.wait(10) != 0
    assert closed(new)


def test_break_restores_at_once(site: Site) -> None:
    lease = site.arm()
    site.variant(lease.token)
    view = control.break_(site.host, by="bob@desk", deadline=limit())
    assert view is not None
    assert view.state == "restoring"
    site.await_closed()
    site.assert_restored()
    assert site.field("why") == "broken by bob@desk"


def test_abandon_closes_and_restores_nothing(site: Site) -> None:
    site.arm()
    site.lab.systemctl("stop", site.service.unit)
    view = control.abandon(site.host, by="bob@desk", deadline=limit())
    assert (view.state, view.result) == ("closed", "abandoned, not restored")
    assert not site.active()


def test_arguments_keep_every_byte(site: Site) -> None:
    odd = ("", "a b", "$HOME `id` $(id)", "quote\" ' \\", "line\nline\n", "-n", "%s %% \t", "é\x7f")
    script = 'printf "%s\\0" "$@" >/var/tmp/alert.args; cat >/var/tmp/alert.text'
    site.arm(site.terms(alert=("sh", "-c", script, "alert", *odd)))
    seen = site.lab.exec("cat", "/var/tmp/alert.args").stdout.split("\0")
    assert seen == [*odd, "--test", ""]
    assert "this is a test" in site.lab.read_file("/var/tmp/alert.text")


def test_an_alert_that_fails_its_test_stops_the_arming(site: Site) -> None:
    with pytest.raises(NotGuardable, match="alert command failed"):
        site.arm(site.terms(alert=("sh", "-c", "echo no route >&2; exit 3")))
    assert site.show().state == "none"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("unit=a b.service", "not a unit"),
        ("unit=-x.service", "not a unit"),
        ("dependent=x;reboot", "not a unit"),
        ("ttl=0", "not a time to live"),
        ("ttl=5m", "not a time to live"),
        ("ttl=09", "not a time to live"),
        ("run=../../etc", "not a run id"),
        ("url=file:///etc/shadow", "not an http url"),
        ("key_file=etc/key", "not an absolute path"),
        ("alert=$(reboot)", "not base64"),
        ("stop_limit=", "not a number"),
        ("evil=1", "unknown term"),
        ("holder=a\x07b", "unprintable"),
    ],
)
def test_terms_that_are_not_understood_are_refused(lab_site: Site, line: str, said: str) -> None:
    key = line.partition("=")[0]
    terms = [text for text in ("run=r", "holder=h", "ttl=9") if not text.startswith(f"{key}=")]
    done = lab_site.lab.exec("sh", GUARD, "arm", stdin="\n".join([*terms, line, ""]), check=False)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert lab_site.show().state == "none"


@pytest.fixture(scope="module")
def lab_site(lab_host: object) -> Site:
    """Return one guarded host for the tests that change nothing."""
    built = Site.build(lab_host)  # type: ignore[arg-type]
    built.install()
    return built


def test_terms_with_line_breaks_never_leave_the_controller(site: Site) -> None:
    terms = site.terms(run="r1\nunit=other.service")
    with pytest.raises(UnfitError, match="do not print"):
        site.arm(terms)


def test_arming_writes_syncs_enables_ticks_in_this_order(site: Site) -> None:
    """What strace sees: lease on disk and synced, then the link that enables the guard, synced, then its start."""
    terms = site.terms().encode(control.version()).decode()
    trace = "/var/tmp/trace"
    calls = "trace=openat,open,fsync,fdatasync,rename,renameat2,symlink,symlinkat,execve,write"
    site.lab.exec("strace", "-f", "-y", "-s", "200", "-o", trace, "-e", calls, "sh", GUARD, "arm", stdin=terms)
    lines = site.lab.read_file(trace).splitlines()

    def first(*words: str, after: int = 0) -> int:
        for number, line in enumerate(lines[after:], after):
            if all(word in line for word in words) and "ENOENT" not in line:
                return number
        raise AssertionError(f"{words} not seen after line {after}")

    terms_synced = first("fsync(", "/var/lib/opsctl/terms.new")
    terms_named = first("rename", "/var/lib/opsctl/terms.1", after=terms_synced)
    folder_synced = first("fsync(", "</var/lib/opsctl>", after=terms_named)
    lease_written = first("write(", "/var/lib/opsctl/lease.", "state=held", after=folder_synced)
    lease_synced = first("fsync(", "/var/lib/opsctl/lease.", after=lease_written)
    enabled = first("symlink", "multi-user.target.wants/opsctl-guard.service", after=lease_synced)
    enable_synced = first("fsync(", "multi-user.target.wants>", after=enabled)
    started = first("execve(", '"--no-block", "start", "opsctl-guard.service"', after=enable_synced)
    seen = first("open", "/run/opsctl/tick", after=started)
    assert (
        terms_synced
        < terms_named
        < folder_synced
        < lease_written
        < lease_synced
        < enabled
        < enable_synced
        < started
        < seen
    )


def test_a_guard_that_does_not_tick_means_no_lease(site: Site) -> None:
    site.lab.exec("mkdir", "-p", "/run/systemd/system/opsctl-guard.service.d")
    site.lab.write_file(
        "/run/systemd/system/opsctl-guard.service.d/x.conf", "[Service]\nExecStart=\nExecStart=/bin/sleep 99\n"
    )
    site.lab.systemctl("daemon-reload")
    with pytest.raises(NotGuardable, match="did not tick"):
        site.arm()
    assert site.field("state") == "closed"
    assert site.field("result") == "never armed"


def test_install_upgrade_and_uninstall_wait_for_the_lease(make_site: Callable[..., Site]) -> None:
    site = make_site(guarded=False)
    assert control.show(site.host, deadline=limit()) is None
    with pytest.raises(NotGuardable, match="cannot be guarded") as caught:
        site.arm()
    assert "opsctl guard install" in "\n".join(caught.value.lines())
    site.install()
    assert site.show().version == control.version()
    lease = site.arm()
    site.install()  # the same version: nothing to do
    with pytest.raises(HostHeld):
        control.uninstall(site.host, deadline=limit())
    site.lab.exec("sh", "-c", f"echo '# another version' >>{GUARD}")
    with pytest.raises(HostHeld):
        site.install()
    control.release(site.host, lease, deadline=limit())
    with pytest.raises(NotGuardable, match="another version"):
        site.arm(site.terms(run="r2"))
    site.install()
    control.uninstall(site.host, deadline=limit())
    assert not site.lab.exists(GUARD)
    assert control.show(site.host, deadline=limit()) is None


def test_releasing_twice_is_one_release(site: Site) -> None:
    """The answer to the first was lost on the way; a lease that the guard closed is another matter."""
    lease = site.arm()
    first = control.release(site.host, lease, deadline=limit())
    assert control.release(site.host, lease, deadline=limit()).closed_at == first.closed_at
    other = site.arm(site.terms(run="r2"))
    control.break_(site.host, by="bob@desk", deadline=limit())
    site.await_closed()
    with pytest.raises(LeaseLost, match="closed by guard"):
        control.release(site.host, other, deadline=limit())
