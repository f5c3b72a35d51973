"""Whose socket answers: a stranger on production's port is never taken for production, and is never sent the key."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import NotGuardable
from opsctl.host.guard import control
from opsctl.serving import readiness
from opsctl.serving.probing import ProbeOutcome
from tests import decoy
from tests.guard.site import UNIT, Site, server_unit, until

pytestmark = pytest.mark.lab

CALLED = ("sh", "-c", 'test "$1" = --test || { cat >>/var/tmp/called; exit 0; }', "alert")

PROXY = """
import http.server, sys, urllib.error, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        wanted = {"content-type": "application/json", "authorization": self.headers.get("authorization", "")}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:8001{self.path}", body, wanted)) as r:
                code, data = r.status, r.read()
        except urllib.error.URLError:
            code, data = 502, b"{}"
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def limit() -> Deadline:
    return Deadline(30, "a look")


@contextmanager
def strange(site: Site, port: int = 8000) -> Iterator[None]:
    """Let nobody answer on production's port, once it can be had."""
    decoy.put(site.lab)
    login = (
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/usr/bin/python3",
        decoy.PATH,
        str(port),
        "kimi",
    )
    again = f"until {' '.join(login)}; do sleep 0.1; done"
    process = subprocess.Popen(site.lab.exec_argv("sh", "-c", again), stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(site, port), 15, "the decoy")
        yield
    finally:
        process.kill()
        process.wait(10)
        site.lab.exec("pkill", "-9", "-f", "decoy.py", check=False)


def listens(site: Site, port: int = 8000) -> bool:
    return decoy.listens(site.lab, port)


def keyed(site: Site) -> None:
    site.lab.write_file("/etc/production.key", "the-secret\n", 0o600)


def stop_production(site: Site) -> None:
    site.lab.systemctl("stop", UNIT)
    until(lambda: not listens(site), 10, "the free port")


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_a_decoy_is_not_verified_in_a_restore(site: Site, shell: str) -> None:
    """The attack: nobody answers on the port during the outage, and the controller is gone."""
    keyed(site)
    site.lab.exec("ln", "-sf", f"/usr/bin/{shell}", "/bin/sh")
    again = "Restart=on-failure\nRestartSec=1\nExecStartPre=/bin/sleep 3\n[Unit]\nStartLimitIntervalSec=0\n"
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", server_unit("kimi", more=again))
    site.lab.systemctl("daemon-reload")
    site.arm(site.terms(key_file="/etc/production.key", alert=CALLED))
    assert site.field("listener") == "unit"
    stop_production(site)
    with strange(site):
        site.guard("break", "bob")
        until(lambda: site.lab.exists("/var/tmp/called"), 60, "the alert", seen=site.log)
        called = site.lab.read_file("/var/tmp/called")
        until(lambda: site.field("attempt") not in {"", "0"}, 60, "a failed attempt", seen=site.log)
        assert site.field("state") == "restoring", site.log()
        assert listens(site), "the decoy was ended"
    assert decoy.received(site.lab) == ""
    assert "production.service" in called
    site.await_closed(90)
    site.assert_restored()


def test_production_that_loads_waits_for_its_port(site: Site) -> None:
    """It is active, loads, and a stranger has its port: nothing is stopped, a person is called, and it comes up."""
    keyed(site)
    site.arm(site.terms(key_file="/etc/production.key", alert=CALLED))
    stop_production(site)
    waits = "/bin/sh -c 'until [ -e /var/tmp/go ]; do sleep 0.2; done; exec /usr/bin/python3 /usr/local/bin/server.py"
    slow = f"[Service]\nExecStart={waits} 8000 kimi'\nTimeoutStopSec=5\n"
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", slow)
    site.lab.systemctl("daemon-reload")
    readiness_ = site.service.readiness.model_copy(update={"limit": 3.0})
    site.service = site.service.model_copy(update={"readiness": readiness_})
    with strange(site):
        site.guard("break", "bob")
        until(lambda: site.field("result") == "stranger", 30, "a stranger seen", seen=site.log)
        pid, entered = site.main_pid(), site.field("entered")
        until(lambda: int(site.field("now")) - int(entered) > 8, 30, "twice its limit")
        assert (site.main_pid(), site.field("attempt"), site.field("state")) == (pid, "0", "restoring"), site.log()
    assert decoy.received(site.lab) == ""
    until(lambda: site.lab.exists("/var/tmp/called"), 10, "the alert", seen=site.log)
    said = site.lab.read_file("/var/tmp/called")
    assert "decoy.py" in said
    assert "user nobody" in said
    site.lab.exec("touch", "/var/tmp/go")
    site.await_closed()
    site.assert_restored()
    assert site.main_pid() == pid


def test_a_decoy_is_refused_when_a_lease_is_armed(site: Site) -> None:
    """Production's unit is active and silent; somebody else answers in its place."""
    keyed(site)
    stop_production(site)
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/bin/sleep 600\n")
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("start", UNIT)
    with strange(site):
        with pytest.raises(NotGuardable, match=r"somebody else answers in the place of production.service.*nobody"):
            site.arm(site.terms(key_file="/etc/production.key"))
        seen = readiness.observe(site.host, site.service, deadline=limit())
        assert seen.problem is ProbeOutcome.STRANGER
    assert decoy.received(site.lab) == ""


def test_production_behind_a_proxy_is_verified(site: Site) -> None:
    """The url is a proxy's: it is recorded when armed, and only the same is believed afterwards."""
    keyed(site)
    site.lab.write_file("/usr/local/bin/proxy.py", PROXY)
    proxy = "[Service]\nExecStart=/usr/bin/python3 /usr/local/bin/proxy.py\n"
    site.lab.write_file("/etc/systemd/system/front.service", proxy)
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", server_unit("kimi", port=8001))
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("restart", UNIT)
    site.lab.systemctl("start", "front.service")
    until(lambda: listens(site) and listens(site, 8001), 20, "production and its proxy")
    lease = site.arm(site.terms(ttl=300, key_file="/etc/production.key"))
    assert lease.listener == "front.service/0"
    site.lab.systemctl("stop", UNIT)
    site.guard("break", "bob")
    site.await_closed()
    site.assert_restored()
    site.arm(site.terms(key_file="/etc/production.key", run="r2", alert=CALLED))
    site.lab.systemctl("stop", "front.service")
    with strange(site):
        site.guard("break", "bob")
        until(lambda: site.field("result") == "stranger", 30, "a stranger seen", seen=site.log)
        assert "it was held by front.service/0" in site.field("seen")
    assert decoy.received(site.lab) == ""
    site.lab.systemctl("start", "front.service")
    site.await_closed()
    site.assert_restored()


def test_a_containers_socket_is_recorded_by_its_kind(site: Site) -> None:
    """A server in the scope of a container, which has another id after each start."""

    def contained(number: int) -> None:
        scope = f"docker-{number:064x}.scope"
        serve = ("/usr/bin/python3", "/usr/local/bin/server.py", "8000", "kimi")
        argv = site.lab.exec_argv("systemd-run", "--scope", "--quiet", f"--unit={scope}", *serve)
        servers.append(subprocess.Popen(argv))
        until(lambda: listens(site), 20, "the container's server")

    servers: list[subprocess.Popen[bytes]] = []
    stop_production(site)
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/bin/sleep 600\n")
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("start", UNIT)
    try:
        contained(1)
        lease = site.arm(site.terms())
        assert lease.listener == "docker-*.scope/0"
        site.lab.exec("pkill", "-9", "-f", "server.py")
        until(lambda: not listens(site), 10, "the free port")
        contained(2)
        site.guard("break", "bob")
        site.await_closed()
        site.assert_restored()
    finally:
        for server in servers:
            server.kill()
            server.wait(10)


def test_the_pid_of_a_probe_is_not_taken_for_a_later_process(site: Site) -> None:
    """A lease names the probe that was at work; that number is another process's by now."""
    script = (
        "set -- version; . /usr/local/lib/opsctl/opsctl-guard >/dev/null; sleep 60 & "
        'echo "$(outcome verify "$!.$(started $!)") $(outcome verify "$!.1")"; kill $!'
    )
    assert site.lab.exec("sh", "-c", script).stdout.split() == ["running", "gone"]


def test_the_controller_names_the_stranger_and_goes_on_when_it_is_gone(make_site: Callable[..., Site]) -> None:
    site = make_site()
    keyed(site)
    lease = site.arm(site.terms(key_file="/etc/production.key"))
    site.host.listener = lease.listener
    stop_production(site)
    site.lab.write_file(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/bin/sleep 600\n")
    site.lab.systemctl("daemon-reload")
    site.lab.systemctl("start", UNIT)
    service = site.service.model_copy(update={"api_key_file": "/etc/production.key"})
    with strange(site):
        seen = readiness.observe(site.host, service, deadline=limit())
        assert (seen.problem, seen.serving) == (ProbeOutcome.STRANGER, False)
        assert "decoy.py" in seen.seen
    assert decoy.received(site.lab) == ""
    assert control.holds(site.host, lease.token, deadline=limit())
