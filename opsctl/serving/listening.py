"""Who listens where a service should: an answer there is the service's only where its own unit has the socket.

The look is the guard's own: the section of its script that judges a port is sent to the host and run there, so that
controller and guard never differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources

from opsctl.deadline import Deadline
from opsctl.errors import Defect
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService

_SECTION = "who holds the port"
_BEFORE = "set -uf\nexport LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nNL='\n'\n"
_AFTER = 'look_at_port "$1" "$2" "$3"\nprintf "%s\\t%s\\t%s\\n" "$port_is" "$port_who" "$(line_of "$port_said" 400)"\n'


class Holding(StrEnum):
    """Whose socket answers at a service's url."""

    OURS = "ours"
    """A process of the unit, or one that it started, has it."""
    AS_ARMED = "as-armed"
    """The same has it as when the lease was armed and production served: a proxy, a container's."""
    OTHER = "other"
    """Somebody else has it: nothing is sent there, and no answer counts."""
    NOBODY = "nobody"
    UNKNOWN = "unknown"
    """The address is another machine's, or a proxy's that was not seen before, or it could not be looked at."""

    @property
    def proven(self) -> bool:
        """Whether it is evidence that the service itself answers."""
        return self in {Holding.OURS, Holding.AS_ARMED}


@dataclass(frozen=True)
class PortHolder:
    """One look at the sockets that a url reaches. ``who`` is what a lease records; ``seen`` says it in words."""

    holding: Holding
    seen: str
    who: str = ""


def port_holder(host: Host, service: ResolvedService, group: str, *, deadline: Deadline) -> PortHolder:
    """Look who listens at a service's url; ``group`` is its unit's control group, "" where it has none.

    ``host.listener`` is who did when the lease was armed. Raises HostError, DeadlineExceeded.
    """
    argv = ("sh", "-s", "--", service.url, group, host.listener)
    done = host.run(argv, stdin=script(), deadline=deadline, check=False)
    return read_holder(done.text, done.stderr.decode(errors="replace"))


def read_holder(text: str, error: str = "") -> PortHolder:
    """Return what the script printed; anything else is unknown, with the script's error."""
    holding, _, rest = text.rstrip("\n").rpartition("\n")[2].partition("\t")
    who, _, seen = rest.partition("\t")
    if holding not in set(Holding):
        why = f": {error.strip()[-200:]}" if error.strip() else ""
        return PortHolder(Holding.UNKNOWN, f"who listens could not be looked at{why}")
    return PortHolder(Holding(holding), seen, who)


@cache
def script() -> bytes:
    """Return the guard's section as a program of its own: it takes URL, GROUP and RECORD."""
    text = resources.files("opsctl.host.guard").joinpath("opsctl-guard").read_text(encoding="utf-8")
    section = text.partition(f" {_SECTION}\n")[2].partition("\n# -----")[0]
    if not section:
        raise Defect(f"the guard has no section {_SECTION!r}: nothing would be known of who holds a port")
    return f"{_BEFORE}{section}\n{_AFTER}".encode()
