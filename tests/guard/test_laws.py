"""A restore never stops a server that answers; only silence and death lead to a new start. Rehearsed when armed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import NotGuardable
from opsctl.host.guard import control
from tests.guard.site import UNIT, Site, server_unit, until

pytestmark = pytest.mark.lab

CALLED = ("sh", "-c", 'test "$1" = --test || { cat >>/var/tmp/called; exit 0; }', "alert")


def limit() -> Deadline:
    return Deadline(60, "a call of the guard")


def with_limit(site: Site, seconds: float) -> None:
    readiness = site.service.readiness.model_copy(update={"limit": seconds})
    site.service = site.service.model_copy(update={"readiness": readiness})


def tell(site: Site, what: str) -> None:
    site.lab.write_file("/var/tmp/told", what)


def certify(site: Site) -> None:
    """Give the server a certificate of its own making."""
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    site.lab.exec("sh", "-c", f"{made} -keyout /tmp/k -out /etc/ca.pem 2>&1 && cat /tmp/k /etc/ca.pem >/etc/tls.pem")
    site.lab.systemctl("restart", UNIT)
    site.service = site.service.model_copy(update={"url": "https://127.0.0.1:8000"})
    listening = ("ss", "-Hltn", "sport = :8000")
    until(lambda: bool(site.lab.exec(*listening).stdout), 20, "the server behind TLS")


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        ("printf 401 >/var/tmp/told", "401"),
        ("printf 403 >/var/tmp/told", "403"),
        ("printf 404 >/var/tmp/told", "404"),
        ("printf 429 >/var/tmp/told", "429"),
        ("printf rotated >/etc/production.key", "401"),
        ("rm /etc/key", "cannot be read"),
    ],
)
def test_a_server_that_answers_is_not_stopped(site: Site, breaking: str, said: str) -> None:
    """It is started, unverified; a person is called; and as soon as it verifies again the lease is closed."""
    with_limit(site, 3.0)
    for path in ("/etc/production.key", "/etc/key"):
        site.lab.write_file(path, "secret\n", 0o600)
    site.arm(site.terms(ttl=2, key_file="/etc/key", alert=CALLED))
    pid = site.main_pid()
    site.lab.exec("sh", "-c", breaking)
    until(lambda: site.field("result") == "unverified", 30, "a start that is not verified", seen=site.log)
    until(lambda: site.lab.exists("/var/tmp/called"), 20, "the alert", seen=site.log)
    assert said in site.field("seen")
    assert "has started production.service and cannot verify it" in site.lab.read_file("/var/tmp/called")
    assert site.show().unverified
    entered = site.field("entered")
    until(lambda: int(site.field("now")) - int(entered) > 8, 30, "many limits' time")
    assert (site.main_pid(), site.field("attempt")) == (pid, "0")
    site.lab.exec("sh", "-c", "rm -f /var/tmp/told; printf secret >/etc/production.key; printf secret >/etc/key")
    site.await_closed()
    site.assert_restored()
    assert site.main_pid() == pid


def test_another_models_name_is_an_answer(site: Site) -> None:
    with_limit(site, 3.0)
    site.arm(site.terms(ttl=3))
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", server_unit("renamed"))
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("restart", UNIT)
    site.await_holder("renamed")
    pid = site.main_pid()
    until(lambda: site.field("result") == "unverified", 30, "a start that is not verified", seen=site.log)
    assert (site.main_pid(), site.active()) == (pid, True)


@pytest.mark.parametrize("text", ["secret\r\n", "  secret \n", "\nsecret\n\n", "secret"])
def test_a_key_file_is_read_as_the_controller_reads_it(site: Site, text: str) -> None:
    site.lab.write_file("/etc/production.key", "secret\n", 0o600)
    site.lab.write_file("/etc/key", text, 0o600)
    lease = site.arm(site.terms(ttl=4, key_file="/etc/key"))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()


def test_silence_for_the_whole_limit_is_a_hang(site: Site) -> None:
    """It takes requests and gives nothing: after its limit, a stop and a start."""
    with_limit(site, 5.0)
    site.arm(site.terms(ttl=2))
    tell(site, "hang")
    pid = site.main_pid()
    until(lambda: site.field("attempt") == "1", 40, "the first failure", seen=site.log)
    site.lab.exec("rm", "/var/tmp/told")
    site.await_closed()
    site.assert_restored()
    assert site.main_pid() != pid
    assert "did not answer within 5 s, and nothing moved" in site.log()


def test_a_load_that_moves_outlasts_its_limit(site: Site) -> None:
    """Thrice its limit, with a log line a second: a person is told, and nothing is done to it."""
    with_limit(site, 4.0)
    lease = site.arm(site.terms(ttl=4, alert=CALLED))
    loading = '/bin/sh -c \'for i in $(seq 12); do echo "shards: $i/12"; sleep 1; done; exec /usr/bin/python3'
    slow = f"[Service]\nExecStart={loading} /usr/local/bin/server.py 8000 kimi'\nTimeoutStopSec=5\n"
    site.variant(lease.token)
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", slow.replace("$(", "$$("))
    site.lab.systemctl("daemon-reload")
    site.await_closed(60)
    site.assert_restored()
    assert "attempt" not in site.log()
    assert "it still moves" in site.lab.read_file("/var/tmp/called")


def test_a_question_that_was_never_answered_stops_nothing(site: Site) -> None:
    """Production was down when the lease was armed: whether the inventory's url is right was never seen."""
    with_limit(site, 3.0)
    site.service = site.service.model_copy(update={"url": "http://127.0.0.1:9999"})
    site.arm(site.terms(ttl=2, rehearse=False))
    pid = site.main_pid()
    until(lambda: site.field("result") == "unverified", 30, "a start that is not verified", seen=site.log)
    assert (site.main_pid(), "never was answered before" in site.field("seen")) == (pid, True)


def test_arming_rehearses_the_guards_own_probe(site: Site) -> None:
    for wrong in ({"model": "other"}, {"url": "http://127.0.0.1:9999"}):
        right, site.service = site.service, site.service.model_copy(update=wrong)
        with pytest.raises(
            NotGuardable, match=r"could not verify production.service, which serves.*no completion"
        ) as e:
            site.arm()
        assert e.value.exit_code == 2
        site.service = right
    site.lab.write_file("/etc/production.key", "secret\n", 0o600)
    with pytest.raises(NotGuardable, match="401"):
        site.arm()
    assert site.show().state == "none"
    site.lab.systemctl("stop", UNIT)
    site.arm(site.terms(rehearse=False))


def test_tls_is_verified_unless_the_inventory_says_no(site: Site) -> None:
    certify(site)
    with pytest.raises(NotGuardable, match="certificate"):
        site.arm()
    lease = site.arm(site.terms(verify=False))
    control.release(site.host, lease, deadline=limit())
    lease = site.arm(site.terms(ttl=3, ca_file="/etc/ca.pem"))
    site.lab.systemctl("stop", UNIT)
    site.await_closed()
    site.assert_restored()
    site.arm(site.terms(ttl=2, ca_file="/etc/ca.pem"))
    pid = site.main_pid()
    site.lab.exec("rm", "/etc/ca.pem")
    until(lambda: site.field("result") == "unverified", 30, "a start that is not verified", seen=site.log)
    assert site.main_pid() == pid


def test_a_crash_loop_counts_as_attempts(site: Site) -> None:
    again = "Restart=always\nRestartSec=1\n[Unit]\nStartLimitIntervalSec=0\n"
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", server_unit("kimi", more=again))
    site.lab.systemctl("daemon-reload")
    lease = site.arm(site.terms(ttl=4, alert=CALLED))
    site.variant(lease.token)
    site.lab.write_file("/var/tmp/failures", "5")
    until(lambda: site.lab.exists("/var/tmp/called"), 60, "the alert", seen=site.log)
    assert "was restarted by systemd" in site.lab.read_file("/var/tmp/called")
    site.await_closed(60)
    site.assert_restored()


def test_a_oneshot_whose_server_died_is_started_anew_at_once(make_site: Callable[..., Site]) -> None:
    start = "ExecStart=/bin/sh -c '/usr/bin/python3 /usr/local/bin/server.py 8000 kimi &'"
    site = make_site(unit_text=f"[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStopSec=5\n{start}\n")
    site.arm(site.terms(ttl=3))
    site.lab.exec("pkill", "-9", "-f", "server.py")
    assert site.active()
    site.await_closed(25)
    site.assert_restored()
    assert "has no process" in site.log()


def test_traffic_that_leaves_a_child_with_the_pipe_does_not_hang_the_restore(site: Site) -> None:
    lease = site.arm(site.terms(ttl=4, traffic=("sh", "-c", "sleep 600 & echo put in")))
    site.variant(lease.token)
    site.await_closed(30)
    site.assert_restored()
    assert "attempt" not in site.log()


def test_a_foreign_process_on_the_gpus_does_not_block_a_restore(site: Site) -> None:
    smi = "#!/bin/sh\ncase $1 in --query-compute-apps*) echo 4242 ;; *) echo 70123 ;; esac\n"
    site.lab.write_file("/usr/local/bin/nvidia-smi", smi, 0o755)
    lease = site.arm(site.terms(ttl=4))
    site.variant(lease.token)
    site.await_closed(40)
    site.assert_restored()
    assert "starting production all the same" in site.log()


def test_the_guard_is_not_ended_by_an_isolate(site: Site) -> None:
    site.arm()
    assert site.lab.systemctl("show", "-p", "IgnoreOnIsolate", "--value", "opsctl-guard.service") == "yes"


def test_triggers_come_back_in_the_order_that_systemd_needs(site: Site) -> None:
    """A socket before its service, which systemd would refuse afterwards; a timer after it."""
    site.lab.write_file("/etc/systemd/system/production.socket", "[Socket]\nListenStream=127.0.0.1:8001\n")
    site.lab.write_file("/etc/systemd/system/production.timer", "[Timer]\nOnCalendar=2099-01-01\n")
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("stop", UNIT)
    triggers = ("production.socket", "production.timer")
    site.lab.systemctl("start", *triggers)
    site.lab.systemctl("start", UNIT)
    site.await_holder("kimi")
    until(lambda: site.lab.exec("curl", "-s", "127.0.0.1:8000", check=False).returncode == 0, 20, "the server")
    lease = site.arm(site.terms(ttl=4, triggers=triggers))
    site.lab.systemctl("stop", *triggers)
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()
    assert all(site.active(unit) for unit in triggers)


def test_a_socket_whose_service_runs_is_said_and_does_not_hold_the_lease(site: Site) -> None:
    """Somebody started production without its socket, which systemd then refuses: production serves, and is let be."""
    site.lab.write_file("/etc/systemd/system/production.socket", "[Socket]\nListenStream=127.0.0.1:8001\n")
    site.lab.systemctl("daemon-reload")
    pid = site.main_pid()
    site.arm(site.terms(ttl=3, triggers=("production.socket",)))
    site.await_closed()
    site.assert_restored()
    assert "production.socket stays down: systemd starts no socket whose service runs" in site.log()
    assert site.main_pid() == pid


def test_triggers_of_a_production_that_stays_down_wait_again(site: Site) -> None:
    site.lab.systemctl("stop", UNIT)
    site.lab.write_file("/etc/systemd/system/production.socket", "[Socket]\nListenStream=127.0.0.1:8001\n")
    site.lab.write_file("/etc/systemd/system/production.timer", "[Timer]\nOnCalendar=2099-01-01\n")
    site.lab.systemctl("daemon-reload")
    triggers = ("production.socket", "production.timer")
    site.arm(site.terms(ttl=2, service=False, triggers=triggers))
    site.await_closed()
    until(lambda: all(site.active(unit) for unit in triggers), 10, "the triggers", seen=site.log)
    assert not site.active(UNIT)


@pytest.mark.parametrize("swept", [False, True])
def test_leftovers_of_production_are_ended_where_it_is_allowed(make_site: Callable[..., Site], swept: bool) -> None:
    """KillMode=process: two workers outlive the stop, in sessions of their own."""
    site = make_site()
    start = "ExecStartPost=/bin/sh -c 'setsid sleep 901 & setsid sleep 902 & exit 0'"
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", server_unit("kimi", more=f"KillMode=process\n{start}\n"))
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("restart", UNIT)
    site.await_holder("kimi")
    stop = site.service.stop.model_copy(update={"end_leftovers": True})
    site.service = site.service.model_copy(update={"stop": stop})
    until(lambda: site.lab.exec("curl", "-s", "127.0.0.1:8000", check=False).returncode == 0, 20, "the server")
    lease = site.arm(site.terms(ttl=300))
    site.lab.systemctl("stop", UNIT)
    left = "sleep 90[12]"
    assert site.lab.exec("pgrep", "-f", left).stdout
    if swept:
        control.sweep(site.host, lease, deadline=limit())
        assert site.lab.exec("pgrep", "-f", left, check=False).stdout == ""
    site.guard("break", "bob")
    site.await_closed()
    site.assert_restored()
    assert "ending what production.service left behind" in site.log()


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_the_guard_restores_under_any_sh(site: Site, shell: str) -> None:
    site.lab.exec("ln", "-sf", f"/usr/bin/{shell}", "/bin/sh")
    lease = site.arm(site.terms(ttl=5, traffic=("true",)))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()
