"""The guard alone brings production back: every kind of unit, every kind of trouble, on a real systemd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import LeaseError, OpsctlError
from opsctl.host.guard import control
from opsctl.lab.spec import HostSpec
from tests.guard.site import UNIT, Site, server_unit, until

pytestmark = pytest.mark.lab

SHORT = 2.0
"""ttl, in seconds, of leases that are to expire."""


def limit() -> Deadline:
    return Deadline(30, "a call of the guard")


def test_power_cut_with_the_variant_running(site: Site) -> None:
    """Production is disabled, so the boot alone does not bring it back; the lease had five minutes left."""
    lease = site.arm()
    site.variant(lease.token)
    before = site.lab.boot_id
    site.lab.reboot()
    assert site.lab.boot_id != before
    site.await_closed()
    site.assert_restored()
    assert site.field("why") == "the host was rebooted"


def test_power_cut_in_the_middle_of_a_restore(site: Site) -> None:
    lease = site.arm()
    site.variant(lease.token)
    site.lab.write_file("/var/tmp/mute", "")
    site.guard("break", "bob")
    until(lambda: site.field("phase") == "verify", 20, "the verification")
    site.lab.reboot()
    site.lab.exec("rm", "/var/tmp/mute")
    site.await_closed()
    site.assert_restored()


@pytest.mark.parametrize("kind", ["disabled", "static", "enabled"])
def test_production_of_any_kind_comes_back(make_site: Callable[..., Site], kind: str) -> None:
    install = "" if kind == "static" else "[Install]\nWantedBy=multi-user.target\n"
    site = make_site(unit_text=server_unit("kimi", more=install))
    if kind == "enabled":
        site.lab.systemctl("enable", UNIT)
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()


def test_a_template_instance_comes_back(make_site: Callable[..., Site]) -> None:
    site = make_site(serve=False)
    site.service = site.service.model_copy(update={"unit": "vllm@kimi.service"})
    site.lab.write_file("/etc/systemd/system/vllm@.service", server_unit("%i"))
    site.serve(server_unit("kimi"), unit="other.service")  # brings server.py
    site.lab.systemctl("stop", "other.service")
    site.lab.systemctl("start", "vllm@kimi.service")
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()


def test_what_hung_on_production_comes_back(site: Site) -> None:
    router = "[Unit]\nRequires=production.service\nAfter=production.service\n[Service]\nExecStart=/bin/sleep infinity\n"
    site.lab.write_file("/etc/systemd/system/router.service", router)
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("start", "router.service")
    lease = site.arm(site.terms(ttl=SHORT, dependents=("router.service",)))
    site.variant(lease.token)
    assert not site.active("router.service")
    site.await_closed()
    site.assert_restored()
    assert site.active("router.service")


def test_traffic_comes_after_the_verification_and_before_the_close(site: Site) -> None:
    script = "cp /run/server.log /var/tmp/at-traffic; test -e /var/tmp/ready || { touch /var/tmp/ready; exit 1; }"
    lease = site.arm(site.terms(ttl=SHORT, traffic=("sh", "-c", script)))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()
    assert "kimi" in site.lab.read_file("/var/tmp/at-traffic")
    assert "attempt 1 failed: traffic in failed" in site.log()


def test_a_unit_that_fails_to_start_twice(site: Site) -> None:
    lease = site.arm(site.terms(ttl=SHORT, alert=("sh", "-c", "touch /var/tmp/alert")))
    site.variant(lease.token)
    site.lab.write_file("/var/tmp/failures", "2")
    site.lab.exec("rm", "/var/tmp/alert")
    site.await_closed()
    site.assert_restored()
    assert "restore attempt 2 failed: production.service is failed" in site.log()
    assert not site.lab.exists("/var/tmp/alert")


def test_the_third_failure_calls_a_person_and_the_guard_goes_on(site: Site) -> None:
    script = 'test "$1" = --test || { cat >/var/tmp/called; echo "$OPSCTL_ALERT_UNIT" >>/var/tmp/called; }'
    lease = site.arm(site.terms(ttl=SHORT, alert=("sh", "-c", script, "alert")))
    site.variant(lease.token)
    site.lab.write_file("/var/tmp/failures", "3")
    until(lambda: site.lab.exists("/var/tmp/called"), 60, "the alert", seen=site.log)
    site.await_closed(60)
    site.assert_restored()
    called = site.lab.read_file("/var/tmp/called")
    assert "could not bring back production.service (3 attempts, run r1)" in called
    assert called.endswith("production.service\n")


def test_a_person_can_hurry_a_restore_that_backs_off(site: Site) -> None:
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    site.lab.write_file("/var/tmp/failures", "4")
    until(lambda: site.field("attempt") == "4", 60, "the fourth failure", seen=site.log)
    view = control.break_(site.host, by="bob@desk", deadline=limit())
    assert view is not None
    assert view.attempt == 0
    site.await_closed(15)
    site.assert_restored()


def test_the_key_travels_and_is_never_in_argv_or_on_disk(site: Site) -> None:
    key = 'sk-"odd\\key'
    site.lab.write_file("/etc/production.key", f"{key}\n", 0o600)
    lease = site.arm(site.terms(ttl=SHORT, key_file="/etc/production.key"))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()
    # grep ends with 1 where it finds nothing.
    found = site.lab.exec("grep", "-raF", key, "/var/lib/opsctl", "/run/opsctl", check=False)
    assert found.returncode == 1, found.stdout


def test_nvidia_smi_that_hangs_for_ever(site: Site) -> None:
    """Bounded: unknown, said so, and production is started all the same. No second one is piled up beside it."""
    hang = "#!/bin/sh\ntrap '' TERM INT HUP\necho $$ >>/var/tmp/smi.pids\nwhile :; do sleep 1; done\n"
    site.lab.write_file("/usr/local/bin/nvidia-smi", hang, 0o755)
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    site.await_closed()
    site.assert_restored()
    assert "the GPUs are not seen free after" in site.log()
    assert len(site.lab.read_file("/var/tmp/smi.pids").split()) == 1


def test_the_gpus_memory_is_waited_for(site: Site) -> None:
    smi = (
        "#!/bin/sh\ncase $1 in --query-compute-apps*) [ -e /var/tmp/free ] || echo 4242 ;;\n"
        "*) if [ -e /var/tmp/free ]; then echo 4; else echo 70123; fi ;; esac\n"
    )
    site.lab.write_file("/usr/local/bin/nvidia-smi", smi, 0o755)
    site.service = site.service.model_copy(update={"stop": site.service.stop.model_copy(update={"gpu_limit": 300.0})})
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    until(lambda: site.field("phase") == "gpu", 20, "the wait for the GPUs", seen=site.log)
    until(
        lambda: "4242" in site.lab.exec("cat", "/run/opsctl/gpu.seen", check=False).stdout, 10, "a probe that says no"
    )
    assert not site.active()
    site.lab.write_file("/var/tmp/free", "")
    site.await_closed()
    site.assert_restored()


def test_a_gpu_that_does_not_say_its_memory_is_judged_by_who_has_it_open(site: Site) -> None:
    """Unified memory, MIG, no permission: what the controller does (serving/gpu), the guard does."""
    smi = "#!/bin/sh\ncase $1 in --query-compute-apps*) ;; *) echo '[N/A]' ;; esac\n"
    site.lab.write_file("/usr/local/bin/nvidia-smi", smi, 0o755)
    script = "mknod /dev/nvidia0 c 1 3; exec 3</dev/nvidia0; while [ ! -e /var/tmp/free ]; do sleep 0.2; done"
    site.lab.exec("systemd-run", "--unit=holder", "sh", "-c", script)
    site.service = site.service.model_copy(update={"stop": site.service.stop.model_copy(update={"gpu_limit": 300.0})})
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    until(lambda: site.field("phase") == "gpu", 20, "the wait for the GPUs", seen=site.log)
    until(
        lambda: "GPUs open" in site.lab.exec("cat", "/run/opsctl/gpu.seen", check=False).stdout,
        10,
        "a probe that says no",
    )
    assert not site.active()
    site.lab.write_file("/var/tmp/free", "")
    site.await_closed()
    site.assert_restored()


def test_a_variant_that_refuses_to_die(site: Site) -> None:
    """It ignores SIGTERM and its unit would wait for ten minutes: the slice is killed after the stop limit."""
    lease = site.arm(site.terms(ttl=SHORT))
    site.lab.systemctl("stop", UNIT)
    unit = (
        "[Service]\nSlice=opsctl.slice\nTimeoutStopSec=600\n"
        "ExecStart=/bin/sh -c \"trap '' TERM; while :; do sleep 1; done\"\n"
    )
    site.lab.write_file("/run/systemd/system/opsctl-stuck.service", unit)
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("start", "opsctl-stuck.service")
    assert control.holds(site.host, lease.token, deadline=limit()) or site.field("state") == "restoring"
    site.await_closed(60)
    site.assert_restored()


def test_no_curl_is_started_unverified_until_somebody_confirms(make_site: Callable[..., Site]) -> None:
    site = make_site(spec=HostSpec(remove=("/usr/bin/curl",)))
    lease = site.arm(site.terms(ttl=SHORT))
    site.variant(lease.token)
    until(lambda: site.field("result") == "unverified", 30, "a start that cannot be verified", seen=site.log)
    assert site.active()
    view = site.show()
    assert view.live
    assert view.unverified
    site.lab.systemctl("stop", UNIT)
    with pytest.raises(LeaseError, match=r"inactive|activating"):
        control.confirm(site.host, by="bob@desk", deadline=limit())
    until(site.active, 40, "production kept up by the guard", seen=site.log)
    view = control.confirm(site.host, by="bob@desk", deadline=limit())
    assert (view.state, view.closed_by, view.result) == ("closed", "bob@desk", "verified")


def test_nothing_to_restore_is_still_cleaned_up(site: Site) -> None:
    """--if-down leave: production was down, and stays so; what the run started is stopped."""
    lease = site.arm(site.terms(ttl=SHORT, service=False))
    site.variant(lease.token)
    site.await_closed()
    assert not site.active()
    assert not site.active("opsctl-variant.service")


def test_a_queued_stop_of_production_is_cancelled(site: Site) -> None:
    """The controller's last word was a stop, and it waits behind another job when the lease ends."""
    lease = site.arm(site.terms(ttl=SHORT))
    blocker = (
        "[Unit]\nAfter=production.service\n[Service]\nExecStart=/bin/sleep infinity\n"
        "ExecStop=/bin/sh -c 'until test -e /var/tmp/go; do sleep 0.1; done'\nTimeoutStopSec=infinity\n"
    )
    site.lab.write_file("/etc/systemd/system/blocker.service", blocker)
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("start", "blocker.service")
    site.lab.systemctl("stop", "--no-block", "blocker.service", UNIT)
    assert "stop" in site.lab.systemctl("list-jobs", UNIT)
    assert lease.token == 1
    site.await_closed()
    site.assert_restored()
    assert "stop" not in site.lab.systemctl("list-jobs", UNIT)
    site.lab.write_file("/var/tmp/go", "")
    until(lambda: not site.active("blocker.service"), 20, "the blocker's end")
    assert site.active()


def test_daemon_reload_in_a_loop_and_kill_9_of_the_guard(site: Site) -> None:
    lease = site.arm(site.terms(ttl=4))
    site.variant(lease.token)
    kills = 0

    def disturbed() -> bool:
        nonlocal kills
        site.lab.systemctl("daemon-reload")
        if kills < 12 and site.field("state") == "restoring":
            site.lab.systemctl("kill", "--signal=KILL", "opsctl-guard.service", check=False)
            kills += 1
        return site.field("state") == "closed"

    until(disturbed, 90, "a restore that is disturbed all the time", seen=site.log)
    assert kills >= 3
    site.assert_restored()


def test_a_full_disk_does_not_stop_a_restore(site: Site) -> None:
    lease = site.arm(site.terms(ttl=4))
    site.variant(lease.token)
    site.lab.fill_disk()
    site.await_closed()
    site.assert_restored()
    assert "lease closed by guard" in site.lab.read_file("/run/opsctl/log")


def test_a_read_only_disk_does_not_stop_a_restore(site: Site) -> None:
    lease = site.arm(site.terms(ttl=6))
    site.variant(lease.token)
    site.lab.read_only()
    site.await_closed()
    assert site.active()
    assert site.field("result") == "verified"
    assert not site.active("opsctl-variant.service")


def test_a_full_disk_refuses_the_arming(site: Site) -> None:
    site.lab.fill_disk()
    with pytest.raises(OpsctlError, match="full or read-only"):
        site.arm()
    assert site.field("state") in {"none", "closed"}
    assert site.active()


def test_a_power_cut_half_way_through_a_write_leaves_the_lease_before(site: Site) -> None:
    lease = site.arm()
    site.variant(lease.token)
    newest = max(("a", "b"), key=lambda slot: site.lab.read_file(f"/var/lib/opsctl/lease.{slot}").startswith("seq="))
    other = "b" if newest == "a" else "a"
    torn = site.lab.read_file(f"/var/lib/opsctl/lease.{newest}").replace("held", "closed")
    site.lab.write_file(f"/var/lib/opsctl/lease.{other}", torn.replace("seq=1", "seq=9")[:4096])
    site.lab.reboot()
    site.await_closed()
    site.assert_restored()
    assert site.field("why") == "the host was rebooted"


def test_a_lease_that_cannot_be_read_is_not_taken_for_none(site: Site) -> None:
    lease = site.arm()
    site.variant(lease.token)
    for slot in "ab":
        site.lab.exec("dd", "if=/dev/urandom", f"of=/var/lib/opsctl/lease.{slot}", "bs=4096", "count=1", "conv=notrunc")
    site.lab.reboot()
    site.await_closed()
    site.assert_restored()
    assert site.field("why") == "the lease cannot be read"
