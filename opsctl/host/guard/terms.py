"""What a lease asks of the guard, and how it travels: lines of KEY=VALUE, arguments in base64."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from dataclasses import dataclass

from opsctl.errors import UnfitError
from opsctl.playbook.resolved import ResolvedService

_PROBE_TOKENS = 4


@dataclass(frozen=True)
class LeaseTerms:
    """All that the guard must know to bring production back without anybody.

    ``service`` None: production was down and is to stay so; only what the run started is stopped.
    ``ttl`` in seconds. ``alert`` is the argv that calls a person; it is tried with ``--test`` when arming.
    ``dependents`` stop with production and ``triggers`` start it: both are started again by a restore.
    ``rehearse``: production serves now, and the guard's own probe must verify it before the lease is armed.
    """

    run: str
    holder: str
    ttl: float
    service: ResolvedService | None
    dependents: tuple[str, ...] = ()
    alert: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    rehearse: bool = True

    def encode(self, version: str) -> bytes:
        """Return the terms as ``opsctl-guard arm`` reads them. Raises UnfitError for text that cannot travel."""
        pairs = [
            ("run", self.run),
            ("holder", self.holder),
            ("ttl", str(max(1, math.floor(self.ttl)))),
            ("version", version),
            *(_service_terms(self.service) if self.service else ()),
            *([("rehearse", "yes")] if self.service and self.rehearse else []),
            *(("dependent", unit) for unit in self.dependents),
            *(("trigger", unit) for unit in self.triggers),
            *(("alert", _base64(word)) for word in self.alert),
        ]
        for key, value in pairs:
            if not value.isprintable():
                raise UnfitError(f"the lease's {key} holds characters that do not print", seen=repr(value))
        return "".join(f"{key}={value}\n" for key, value in pairs).encode()


def _service_terms(service: ResolvedService) -> list[tuple[str, str]]:
    return [
        ("unit", service.unit),
        ("url", f"{service.url.rstrip('/')}/v1/completions"),
        ("key_file", service.api_key_file or ""),
        # Sent only where they are set: the default is curl's own, the system's store.
        *([("ca_file", service.ca_file)] if service.ca_file else []),
        *([("verify", "no")] if not service.verify else []),
        ("body", _base64(_completion(service.model))),
        ("stop_limit", _seconds(service.stop.limit)),
        ("gpu_limit", _seconds(service.stop.gpu_limit)),
        *([("end_leftovers", "yes")] if service.stop.end_leftovers else []),
        ("load_limit", _seconds(service.readiness.limit)),
        ("request_limit", _seconds(service.readiness.request_limit)),
        ("traffic_limit", _seconds(service.traffic.limit)),
        *(("traffic", _base64(word)) for word in service.traffic.in_),
    ]


def _completion(model: str) -> str:
    """Return the request by which the guard sees production serve: the same route that vLLM and SGLang have."""
    return json.dumps({"model": model, "prompt": "The", "max_tokens": _PROBE_TOKENS, "temperature": 0})


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _seconds(value: float) -> str:
    return str(min(99_999_999, max(1, math.ceil(value))))
