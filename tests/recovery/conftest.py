"""Recovery is tested with the campaign room's desk and serving host."""

from __future__ import annotations

from tests.campaign.conftest import desk, make_desk, serving_host

__all__ = ["desk", "make_desk", "serving_host"]
