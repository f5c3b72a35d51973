"""Fixtures of the guard's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from opsctl.lab.spec import HostSpec
from tests.guard.site import Site
from tests.labfixtures import MakeLabHost


@pytest.fixture
def make_site(make_lab_host: MakeLabHost) -> Iterator[Callable[..., Site]]:
    """Return a function that boots a guarded host with production serving."""
    made: list[Site] = []

    def make(
        *, spec: HostSpec | None = None, unit_text: str = "", guarded: bool = True, scope: str = "system",
        become: bool = False, serve: bool = True,
    ) -> Site:  # fmt: skip
        site = Site.build(make_lab_host(spec), scope=scope, become=become)
        made.append(site)
        if serve:
            site.serve(unit_text)
        if guarded:
            site.install()
        return site

    yield make
    for site in made:
        site.host.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """Return a guarded host with production serving."""
    return make_site()
