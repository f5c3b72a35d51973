"""TLS from the host: what certificates are trusted, and TLS through streams that are no sockets of ours."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpcore

from opsctl.errors import UnfitError

Result = TypeVar("Result")

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Trust:
    """How the certificate of an https url is checked: by the system's store, by ``ca_pem``, or not at all."""

    verify: bool = True
    ca_pem: str | None = None
    """Text of the file that the inventory names as ``ca-file``."""

    def context(self) -> ssl.SSLContext:
        """Return OpenSSL's settings for it. Raises UnfitError where ``ca_pem`` holds no certificate."""
        if not self.verify:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        try:
            return ssl.create_default_context(cadata=self.ca_pem)
        except (ssl.SSLError, ValueError) as error:
            raise UnfitError(
                "the ca-file of the service cannot be used",
                wanted="certificates in PEM",
                seen=str(error),
                hint="openssl x509 -in FILE -noout -subject shows whether it holds one",
            ) from error


class TlsStream(httpcore.NetworkStream):
    """TLS over any stream: a channel through SSH is no socket that OpenSSL could write to."""

    def __init__(
        self, inner: httpcore.NetworkStream, context: ssl.SSLContext, server_hostname: str | None, timeout: float | None
    ) -> None:
        self._inner = inner
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_hostname)
        try:
            self._pump(self._tls.do_handshake, timeout)
        except ssl.SSLError as error:
            raise httpcore.ConnectError(f"TLS: {getattr(error, 'verify_message', '') or error}") from error

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what came, decrypted; b"" at the end."""
        try:
            return self._pump(lambda: self._tls.read(max_bytes), timeout)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""
        except ssl.SSLError as error:
            raise httpcore.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it, encrypted."""
        rest = memoryview(buffer)
        try:
            while rest:
                rest = rest[self._pump(lambda data=rest: self._tls.write(data), timeout) :]  # type: ignore[misc]
        except ssl.SSLError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        """Close the stream below."""
        self._inner.close()

    def get_extra_info(self, info: str) -> object:
        """Return what the stream below says; ``ssl_object`` is this one's own."""
        return self._tls if info == "ssl_object" else self._inner.get_extra_info(info)

    def _pump(self, step: Callable[[], Result], timeout: float | None) -> Result:
        """Do one step of OpenSSL, moving bytes between it and the stream for as long as it asks for more."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush(timeout)
                if data := self._inner.read(_CHUNK, timeout):
                    self._in.write(data)
                else:
                    self._in.write_eof()
            except ssl.SSLError:
                # The alert that tells the server why.
                with contextlib.suppress(httpcore.NetworkError, httpcore.TimeoutException):
                    self._flush(timeout)
                raise
            else:
                self._flush(timeout)
                return result

    def _flush(self, timeout: float | None) -> None:
        if data := self._out.read():
            self._inner.write(data, timeout)
