"""How the certificate of an https server is checked: the service's ``ca-file`` and ``verify`` of the inventory."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from opsctl.payload.errors import PayloadError


@dataclass(frozen=True)
class Trust:
    """By the host's own store, by a file of certificates on the host, or not at all."""

    ca_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return OpenSSL's settings for it. Raises PayloadError for a file that holds no certificates."""
        if not self.verify:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # SSLError is one
            msg = f"the ca-file {self.ca_file} cannot be used: {error.strerror or error}"
            raise PayloadError(msg) from error
