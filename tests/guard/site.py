"""A lab host with a production server of a few lines, the guard on it, and a connected Host: what guard tests need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.deadline import Deadline
from opsctl.host import connect
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease, LeaseTerms, LeaseView
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.playbook.models import HostEntry, Readiness, Role, Stopping, Traffic
from opsctl.playbook.resolved import ResolvedService

GUARD = "/usr/local/lib/opsctl/opsctl-guard"
UNIT = "production.service"
VARIANT = "opsctl-variant.service"

# Answers completions, hangs or answers what it is told; takes an exclusive lock for its GPUs and dies loudly
# when it is taken; fails as often as told.
SERVER = """
import fcntl, http.server, json, os, pathlib, ssl, sys, time
port, name = int(sys.argv[1]), sys.argv[2]
log = pathlib.Path("/run/server.log").open("a")
budget = pathlib.Path("/var/tmp/failures")
left = int(budget.read_text()) if budget.exists() else 0
if left:
    budget.write_text(str(left - 1))
    sys.exit(f"told to fail, {left - 1} times more")
lock = open("/run/gpu.lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    pathlib.Path("/var/tmp/breach").write_text(name)
    sys.exit("two servers on the same GPUs")
pathlib.Path("/run/holder").write_text(name)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        told = pathlib.Path("/var/tmp/told")
        if told.exists() and told.read_text() == "hang":
            time.sleep(600)
        if told.exists():
            return self.answer(int(told.read_text()), {"error": "told to"})
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = pathlib.Path("/etc/production.key")
        if key.exists() and self.headers["authorization"] != "Bearer " + key.read_text().rstrip("\\n"):
            return self.answer(401, {"error": "key"})
        if body["model"] != name or pathlib.Path("/var/tmp/mute").exists():
            return self.answer(404, {"error": "model"})
        self.answer(200, {"choices": [{"text": " ok"}], "usage": {"completion_tokens": 2}})
    def answer(self, code, document):
        data = json.dumps(document, indent=1).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        print(name, *args, file=log, flush=True)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
if pathlib.Path("/etc/tls.pem").exists():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain("/etc/tls.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def server_unit(model: str, *, port: int = 8000, more: str = "") -> str:
    return f"[Service]\nExecStart=/usr/bin/python3 /usr/local/bin/server.py {port} {model}\nTimeoutStopSec=5\n{more}"


def until(true: Callable[[], bool], seconds: float, what: str, *, seen: Callable[[], str] = lambda: "") -> None:
    """Look until it is true; the deadline is the failure."""
    deadline = Deadline(seconds, what)
    while not true():
        if deadline.expired:
            deadline.check(seen=seen())
        time.sleep(0.05)


@dataclass
class Site:
    """One guarded host."""

    lab: LabHost
    host: Host
    entry: HostEntry
    service: ResolvedService

    @classmethod
    def build(cls, lab: LabHost, *, scope: str = "system", become: bool = False) -> Site:
        entry = HostEntry.model_validate(
            {
                "address": lab.address,
                "user": lab.spec.login,
                "identity_file": str(lab.identity_file),
                "known_hosts": str(lab.known_hosts),
                "scope": scope,
                "become": become,
            }
        )
        host = connect(lab.name, entry, deadline=Deadline(20, "connection"))
        service = ResolvedService(
            name="production", host=lab.name, unit=UNIT, role=Role.PRODUCTION, model="kimi", url="http://127.0.0.1:8000",
            readiness=Readiness(limit=30.0, request_limit=3.0), stop=Stopping(limit=8.0, gpu_limit=5.0),
        )  # fmt: skip
        return cls(lab, host, entry, service)

    def serve(self, text: str = "", *, unit: str = UNIT) -> None:
        """Install and start production."""
        self.lab.write_file("/usr/local/bin/server.py", SERVER)
        self.lab.write_file(f"/etc/systemd/system/{unit}", text or server_unit("kimi"))
        self.lab.systemctl("daemon-reload")
        self.lab.systemctl("start", unit)
        self.await_holder("kimi")

    def await_holder(self, name: str) -> None:
        """Wait until a server has read its orders and holds the GPUs."""

        def holder() -> str:
            return self.lab.exec("cat", "/run/holder", check=False).stdout

        until(lambda: holder() == name, 20, f"{name} on the GPUs", seen=holder)

    def variant(self, token: int, *, model: str = "variant") -> None:
        """Stop production and start a variant, the way a campaign leaves a host when it dies."""
        condition = f"ExecCondition=/bin/sh {GUARD} holds {token}\nSlice=opsctl.slice\n"
        self.lab.systemctl("stop", self.service.unit)
        self.lab.write_file(f"/run/systemd/system/{VARIANT}", server_unit(model, more=condition))
        self.lab.systemctl("daemon-reload")
        self.lab.systemctl("start", VARIANT)
        self.await_holder(model)

    def terms(
        self, ttl: float = 300, *, run: str = "r1", dependents: tuple[str, ...] = (), alert: tuple[str, ...] = (),
        traffic: tuple[str, ...] = (), key_file: str | None = None, service: bool = True, rehearse: bool = True,
        triggers: tuple[str, ...] = (), ca_file: str | None = None, verify: bool = True,
    ) -> LeaseTerms:  # fmt: skip
        changes = {"traffic": Traffic(in_=traffic), "api_key_file": key_file, "ca_file": ca_file, "verify": verify}
        wanted = self.service.model_copy(update=changes)
        return LeaseTerms(
            run=run,
            holder="alice@laptop",
            ttl=ttl,
            service=wanted if service else None,
            dependents=dependents,
            alert=alert,
            rehearse=rehearse,
            triggers=triggers,
        )

    def install(self) -> None:
        control.install(self.host, deadline=Deadline(20, "install"))

    def arm(self, terms: LeaseTerms | None = None) -> Lease:
        return control.arm(self.host, terms or self.terms(), deadline=Deadline(40, "arm"))

    def show(self) -> LeaseView:
        view = control.show(self.host, deadline=Deadline(20, "show"))
        assert view is not None
        return view

    def guard(self, *arguments: str, check: bool = True) -> str:
        """Run the guard as root inside the host, past the network."""
        return self.lab.exec("sh", GUARD, *arguments, check=check).stdout

    def main_pid(self, unit: str = "") -> str:
        return self.lab.systemctl("show", "--property=MainPID", "--value", unit or self.service.unit)

    def active(self, unit: str = "") -> bool:
        return self.lab.systemctl("is-active", unit or self.service.unit, check=False) == "active"

    def field(self, name: str) -> str:
        """One field of the lease, read inside the host: works while the network is cut."""
        lines = self.guard("show").splitlines()
        return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), "")

    def log(self) -> str:
        return "\n".join(line for line in self.guard("show").splitlines() if line.startswith("log="))

    def await_closed(self, seconds: float = 45) -> None:
        """Wait until the guard has closed the lease, with production serving."""
        until(lambda: self.field("state") == "closed", seconds, "the guard's restore", seen=lambda: self.guard("show"))

    def assert_restored(self) -> None:
        """Production serves, the guard saw it, nothing of ours runs, and no two servers ever held the GPUs."""
        assert self.active(), self.log()
        assert self.field("result") == "verified", self.log()
        assert self.field("closed_by") == "guard", self.log()
        assert not self.lab.exists("/etc/systemd/system/multi-user.target.wants/opsctl-guard.service")
        assert not self.lab.exists("/var/tmp/breach"), self.lab.read_file("/var/tmp/breach")
        assert not self.active("opsctl.slice")
