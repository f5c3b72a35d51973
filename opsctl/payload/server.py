"""What is asked of a model server beside the streams: tokenising, metrics, version, model list. Through httpx."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from opsctl.payload.errors import PayloadError
from opsctl.payload.tls import Trust

_LIMIT = 30.0
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)", re.MULTILINE)


def read_api_key(path: str | None) -> str | None:
    """Return the key that a file of this host holds; None where none is named. Raises PayloadError."""
    if not path:
        return None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        msg = f"the API key file {path} cannot be read: {reason}"
        raise PayloadError(msg) from error
    if not key or any(character in key for character in "\r\n"):
        msg = f"the API key file {path} holds no key, or more than one line"
        raise PayloadError(msg)
    return key


def parse_metrics(text: str) -> dict[str, float]:
    """Return Prometheus samples summed over their labels: ``vllm:prompt_tokens_total`` → 1234.0."""
    totals: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        try:
            value = float(match["value"])
        except ValueError:
            continue
        totals[match["name"]] = totals.get(match["name"], 0.0) + value
    return totals


class Server:
    """One model server on this host's network."""

    def __init__(self, url: str, *, api_key_file: str | None = None, trust: Trust | None = None) -> None:
        self.url = url.rstrip("/")
        self.trust = trust or Trust()
        key = read_api_key(api_key_file)
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        context = self.trust.context() if self.url.startswith("https:") else True
        self._client = httpx.Client(
            base_url=self.url, headers=self.headers, timeout=_LIMIT, trust_env=False, verify=context
        )

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def request(
        self, method: str, path: str, *, limit: float = _LIMIT, json: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        """Send one request. Raises PayloadError when there is no answer, or a 401."""
        try:
            response = self._client.request(
                method, path, json=json, timeout=httpx.Timeout(limit, connect=min(limit, 10))
            )
        except httpx.TimeoutException as error:
            msg = f"{method} {self.url}{path} was not answered within {limit:g} s"
            raise PayloadError(msg) from error
        except httpx.HTTPError as error:
            msg = f"{method} {self.url}{path} failed: {error}"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                msg += "; set ca-file of the service to the host's file with the certificate that signed the server's"
            raise PayloadError(msg) from error
        if response.status_code in {401, 403}:
            msg = f"{method} {self.url}{path} answered {response.status_code}: the API key is missing or wrong"
            raise PayloadError(msg)
        return response

    def optional(self, path: str) -> httpx.Response | None:
        """Return the answer to a GET where it is a 200; None otherwise."""
        try:
            response = self.request("GET", path)
        except PayloadError:
            return None
        return response if response.status_code == 200 else None

    def version(self, routes: Sequence[tuple[str, str]]) -> str | None:
        """Return what the first of these (route, key of its JSON answer) says; None where none does."""
        for path, key in routes:
            response = self.optional(path)
            try:
                said = response.json().get(key) if response is not None else None
            except (ValueError, AttributeError):
                continue
            if said:
                return str(said)
        return None

    def models(self) -> list[str]:
        """Return the served names. Raises PayloadError."""
        response = self.request("GET", "/v1/models")
        try:
            return [str(entry["id"]) for entry in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            msg = f"GET {self.url}/v1/models answered {response.status_code} with no list of models"
            raise PayloadError(msg) from error

    def metrics(self) -> dict[str, float]:
        """Return /metrics summed over labels; empty where there is none."""
        response = self.optional("/metrics")
        return parse_metrics(response.text) if response is not None else {}

    def count_tokens(self, model: str, text: str) -> int | None:
        """Return the length of a prompt by the server's own tokenizer; None where /tokenize is not served."""
        response = self.request("POST", "/tokenize", json={"model": model, "prompt": text})
        if response.status_code != 200:
            return None
        try:
            return int(response.json()["count"])
        except (ValueError, KeyError, TypeError):
            return None
