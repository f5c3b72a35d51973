"""A service as it stands on one host: names filled in, a variant's own keys laid over its production's."""

from __future__ import annotations

from opsctl.playbook.models import Role, ServiceEntry


class ResolvedService(ServiceEntry):
    """One service on one host. Nothing is inherited any more: ``unit``, ``url`` and ``model`` are there.

    A variant's ``readiness``, ``stop``, ``engine``, ``url``, ``model``, ``api_key_file``, ``ca_file``,
    ``verify`` and ``tensor_parallel`` are its production's where it says nothing itself; ``traffic`` is production's
    alone, since a variant is never put into the load balancer.
    """

    name: str
    """The service's name in the inventory."""
    host: str
    """The host's name in the inventory."""
    unit: str
    """systemd unit, with its suffix."""
    url: str
    model: str

    @property
    def is_variant(self) -> bool:
        """Whether it derives from production."""
        return self.role is Role.VARIANT

    @property
    def ends_leftovers(self) -> bool:
        """Whether opsctl may end what outlives a stop of it: production's alone, by what was noted when armed."""
        return self.stop.end_leftovers and self.role is Role.PRODUCTION
