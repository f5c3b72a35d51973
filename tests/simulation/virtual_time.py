"""The process's clocks, virtual. Import it before anything of opsctl, whose defaults bind clocks at import."""

from __future__ import annotations

import time
from collections.abc import Callable

_real = time.monotonic
now: Callable[[], float] = _real
sleep: Callable[[float], None] = time.sleep


def real_seconds() -> float:
    """Return the seconds of the real clock."""
    return _real()


def install() -> None:
    """Put ``now`` and ``sleep`` of this module, which a simulation sets, in the place of the process's own."""
    replacements: dict[str, Callable[..., object]] = {
        # Looked up at each call: every schedule sets its own.
        "monotonic": lambda: now(),  # noqa: PLW0108
        "sleep": lambda seconds: sleep(seconds),  # noqa: PLW0108
        "clock_gettime": lambda _: now(),
    }
    for name, function in replacements.items():
        setattr(time, name, function)


install()
