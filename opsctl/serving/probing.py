"""Asking a model server, from its own host: what it serves, whether tokens come, how many requests run.

Every question has one of a few answers (``ProbeOutcome``): refused connections during a load are normal, a 401 is
the key's fault, and a port that something else answers is neither. Only the loss of the link is raised.

Before each question, and so before the key is sent, the port's holder is looked at: a stranger is asked nothing.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES
from opsctl.engines.base import Routes
from opsctl.errors import CommandFailed, DeadlineExceeded, NotReady
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.listening import Holding, PortHolder, port_holder
from opsctl.serving.waits import CALL_LIMIT

if TYPE_CHECKING:
    import httpx


class ProbeOutcome(StrEnum):
    """What became of one question."""

    GOOD = "good"
    REFUSED = "nothing listens"
    TIMEOUT = "no answer in time"
    BROKEN = "the connection broke"
    UNAUTHORIZED = "the key was refused"
    UNTRUSTED = "its certificate cannot be trusted"
    BUSY = "the server said that it cannot now"
    CROWDED = "the server answers, and takes no more requests now"
    OTHER_MODEL = "another model is served"
    FOREIGN = "something else answers"
    STRANGER = "somebody else holds its port"
    EMPTY = "an answer without tokens"


@dataclass(frozen=True)
class Answer:
    """One answer, in words that evidence can quote. ``data`` is what was asked for when the outcome was good."""

    outcome: ProbeOutcome
    seen: str
    data: Any = None
    status: int = 0
    """Of HTTP, where there was an answer."""

    @property
    def good(self) -> bool:
        """Whether what was asked for came."""
        return self.outcome is ProbeOutcome.GOOD


class ServerProbe:
    """Questions to one service. The key is read from the host's file once, and lives in a header only."""

    def __init__(self, host: Host, service: ResolvedService, *, deadline: Deadline) -> None:
        self.service = service
        self._host = host
        self._group = ""
        self._routes = ENGINES[service.engine].routes
        key = _read_key(host, service, deadline)
        self._client = host.http(
            service.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            verify=service.verify,
            ca_pem=_read_ca(host, service, deadline),
        )

    def __repr__(self) -> str:
        return f"ServerProbe({self.service.name!r})"

    def close(self) -> None:
        """Close the connections; a question in flight ends as broken."""
        self._client.close()

    def holder(self) -> PortHolder:
        """Look who holds the service's port. Raises HostError, DeadlineExceeded."""
        what = f"who listens at {self.service.url}"
        if not self._group:  # a unit has the same one at each start, and none while it is down
            status = self._host.systemd().status(self.service.unit, deadline=Deadline(CALL_LIMIT, what))
            self._group = status.control_group
        return port_holder(self._host, self.service, self._group, deadline=Deadline(CALL_LIMIT, what))

    def models(self, *, limit: float) -> Answer:
        """Ask ``/v1/models``; good when the served name is in it. ``data`` is the tuple of names."""
        answer = self._ask("GET", "/v1/models", limit=limit)
        if not answer.good:
            return answer
        entries = answer.data.get("data") if isinstance(answer.data, dict) else None
        if not isinstance(entries, list):
            return Answer(
                ProbeOutcome.FOREIGN, f"/v1/models answered {_short(answer.data)}, which is no list of models"
            )
        names = tuple(str(entry.get("id")) for entry in entries if isinstance(entry, dict))
        if self.service.model not in names:
            return Answer(ProbeOutcome.OTHER_MODEL, f"/v1/models lists {', '.join(names) or 'nothing'}", names)
        return Answer(ProbeOutcome.GOOD, f"/v1/models lists {', '.join(names)}", names)

    def completion(self, *, limit: float) -> Answer:
        """Ask for a few real tokens; good when some came. ``data`` is their number.

        The prompt is unique, so that no prefix cache answers for a dead engine.
        """
        body = {
            "model": self.service.model,
            "prompt": f"opsctl {uuid.uuid4().hex}: one, two,",
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = self._ask("POST", "/v1/completions", limit=limit, body=body)
        if not answer.good:
            return answer
        data = answer.data if isinstance(answer.data, dict) else {}
        usage = data.get("usage") or {}
        choices = data.get("choices") or [{}]
        tokens = int(usage.get("completion_tokens") or 0) if isinstance(usage, dict) else 0
        text = str(choices[0].get("text") or "") if isinstance(choices[0], dict) else ""
        if tokens <= 0 and not text:
            return Answer(ProbeOutcome.EMPTY, f"the completion held no token: {_short(data)}")
        return Answer(ProbeOutcome.GOOD, f"a completion gave {tokens or 'some'} tokens", tokens or 1)

    def version(self, *, limit: float) -> str | None:
        """Return what the server calls its version, or None."""
        for path, key in self._routes.version:
            answer = self._ask("GET", path, limit=limit)
            if answer.good and isinstance(answer.data, dict) and answer.data.get(key):
                return str(answer.data[key])
        return None

    def server_info(self, *, limit: float) -> dict[str, Any] | None:
        """Return the server's own account of its arguments (SGLang's ``/get_server_info``), or None."""
        answer = self._ask("GET", "/get_server_info", limit=limit)
        return answer.data if answer.good and isinstance(answer.data, dict) else None

    def has_route(self, path: str, *, limit: float) -> bool | None:
        """Return whether the server has a route, without calling it: OPTIONS is 405 on one that is there, else 404."""
        answer = self._ask("OPTIONS", path, limit=limit, parse=False)
        known = {200: True, 204: True, 405: True, 404: False}
        return known.get(answer.status)

    def running(self, *, limit: float) -> int | None:
        """Return requests running and waiting by ``/metrics``, or None where it does not say."""
        answer = self._ask("GET", "/metrics", limit=limit, parse=False)
        return requests_in_flight(answer.data, self._routes) if answer.good else None

    def _ask(
        self, method: str, path: str, *, limit: float, body: dict[str, Any] | None = None, parse: bool = True
    ) -> Answer:
        """Ask once. ``limit`` is seconds for each phase of the request; raises HostError when the link is lost."""
        import httpx  # noqa: PLC0415 - only where a server is asked

        if (withheld := self._withheld()) is not None:
            return withheld
        try:
            response = self._client.request(method, path, json=body, timeout=limit)
        except httpx.ConnectError as error:
            if "TLS" in str(error) or "SSL" in str(error):
                return Answer(ProbeOutcome.UNTRUSTED, f"{self.service.url}: {error}")
            return Answer(ProbeOutcome.REFUSED, f"nothing listens at {self.service.url}")
        except httpx.TimeoutException:
            return Answer(ProbeOutcome.TIMEOUT, f"{method} {path} gave no answer within {limit:.3g} s")
        except httpx.HTTPError as error:
            return Answer(ProbeOutcome.BROKEN, f"{method} {path}: {type(error).__name__}: {error}")
        except RuntimeError as error:  # httpx says so of a client that was closed meanwhile
            return Answer(ProbeOutcome.BROKEN, f"{method} {path}: {error}")
        return _judge(method, path, response, parse=parse)

    def _withheld(self) -> Answer | None:
        """Return the answer where nothing may be sent: the port is a stranger's, or nobody's that was somebody's."""
        try:
            held = self.holder()
        except DeadlineExceeded as error:
            return Answer(ProbeOutcome.TIMEOUT, f"{error}")
        if held.holding is Holding.OTHER:
            return stranger(held)
        if held.holding is Holding.NOBODY and self._host.listener:
            return Answer(ProbeOutcome.REFUSED, f"nothing listens at {self.service.url}")
        return None


def stranger(held: PortHolder) -> Answer:
    """Return the answer of a port that somebody else holds."""
    return Answer(ProbeOutcome.STRANGER, held.seen)


def _judge(method: str, path: str, response: httpx.Response, *, parse: bool) -> Answer:
    status = response.status_code
    said = f"{method} {path} answered {status}"
    if status in {401, 403}:
        return Answer(ProbeOutcome.UNAUTHORIZED, said, status=status)
    if status in {408, 425, 429}:
        return Answer(ProbeOutcome.CROWDED, f"{said}: {_short(response.text)}", status=status)
    if status >= 500:
        return Answer(ProbeOutcome.BUSY, f"{said}: {_short(response.text)}", status=status)
    if status != 200:
        return Answer(ProbeOutcome.FOREIGN, f"{said}: {_short(response.text)}", status=status)
    if not parse:
        return Answer(ProbeOutcome.GOOD, said, response.text, status)
    try:
        return Answer(ProbeOutcome.GOOD, said, response.json(), status)
    except (json.JSONDecodeError, UnicodeDecodeError):
        server = response.headers.get("server", "no name")
        return Answer(ProbeOutcome.FOREIGN, f"{said} with something that is not JSON (server: {server})", status=status)


_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>[\d.eE+]+)\s*$", re.MULTILINE)


def requests_in_flight(metrics: str, routes: Routes) -> int | None:
    """Return requests running and waiting, summed over engines, from Prometheus text; None where none is named.

    A wedged engine was seen to say 0 (vllm 46811): good for draining, never for health.
    """
    names = {*routes.running, *routes.waiting}
    values = [float(match["value"]) for match in _SAMPLE.finditer(metrics) if match["name"] in names]
    return round(sum(values)) if values else None


def _read_key(host: Host, service: ResolvedService, deadline: Deadline) -> str:
    if service.api_key_file is None:
        return ""
    where = f"host {host.name}, {service.api_key_file}"
    try:
        key = host.read_file(service.api_key_file, deadline=deadline, limit=64 << 10).decode().strip()
    except CommandFailed as error:
        raise NotReady(
            f"the API key of {service.name} cannot be read",
            seen=error.message,
            where=where,
            hint="api-key-file is a path on the host that the user opsctl logs in as (or root, with become) can read",
        ) from error
    except UnicodeDecodeError as error:
        raise NotReady(f"the API key file of {service.name} does not hold text", where=where) from error
    if not key or "\n" in key:
        raise NotReady(
            f"the API key file of {service.name} must hold one line, the key", seen="empty or more", where=where
        )
    return key


def _read_ca(host: Host, service: ResolvedService, deadline: Deadline) -> str | None:
    if service.ca_file is None:
        return None
    try:
        return host.read_file(service.ca_file, deadline=deadline, limit=4 << 20).decode()
    except (CommandFailed, UnicodeDecodeError) as error:
        raise NotReady(
            f"the certificates of {service.name} cannot be read",
            seen=str(error),
            where=f"host {host.name}, {service.ca_file}",
            hint="ca-file is a path on the host, of certificates in PEM",
        ) from error


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else f"{text[:160]}…"


_HINTS: Mapping[ProbeOutcome, str] = {
    ProbeOutcome.UNAUTHORIZED: "set api-key-file of the service to the file on the host that holds the server's key",
    ProbeOutcome.UNTRUSTED: "set ca-file of the service to the host's file with the certificate that signed the"
    " server's; the name in the url must be one that the certificate names",
    ProbeOutcome.FOREIGN: "see who listens with `ss -ltnp` on the host, and compare the service's url",
    ProbeOutcome.STRANGER: "end that process, or have its owner do it: it is not the service that answers there, which"
    " cannot come up before; nothing was sent to it",
    ProbeOutcome.OTHER_MODEL: "set model of the service to a name that the server lists (--served-model-name)",
    ProbeOutcome.REFUSED: "the unit runs, nothing listens: it still loads, or the service's url names another port",
    ProbeOutcome.CROWDED: "it has as many requests as it takes: wait until it has room; it is left running",
    ProbeOutcome.TIMEOUT: "a server that is healthy but dead answers /health only: look at its journal, restart it",
    ProbeOutcome.EMPTY: "the engine answers without generating: look at its journal",
}


def not_ready(host: Host, service: ResolvedService, answer: Answer) -> NotReady:
    """Return the error for a server that gave this answer."""
    return NotReady(
        f"{service.name} does not serve: {answer.outcome.value}",
        wanted=f"completions of {service.model} at {service.url}",
        seen=answer.seen,
        where=f"host {host.name}, {service.unit}",
        hint=_HINTS.get(answer.outcome, f"journalctl -u {service.unit}"),
    )


def request_limit(service: ResolvedService, deadline: Deadline, *, most: float | None = None) -> float:
    """Return seconds for one request, never past the deadline."""
    return max(0.1, min(service.readiness.request_limit, most or service.readiness.request_limit, deadline.remaining()))
