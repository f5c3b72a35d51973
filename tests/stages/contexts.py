"""Contexts for stages under test."""

from __future__ import annotations

from typing import Any

from opsctl.playbook.models import HostEntry, ServiceEntry
from opsctl.stages.base import StageContext


def context(**changes: Any) -> StageContext:
    """Return a context in which a service serves on an 8-GPU host."""
    values: dict[str, Any] = {
        "run": "r1",
        "step": "kernels/1-x",
        "host_name": "kimi-1",
        "host": HostEntry(gpus=8),
        "folder": "/var/lib/opsctl/runs/r1/kernels_1-x",
        "service_name": "vllm-kimi",
        "service": ServiceEntry(url="http://127.0.0.1:8000", model="kimi", tensor_parallel=8, api_key_file="/etc/key"),
        "trace_dir": "/var/lib/traces",
    }
    return StageContext(**{**values, **changes})


def nothing(**changes: Any) -> StageContext:
    """Return a context in which nothing serves."""
    return context(**{"service": None, "service_name": None, "trace_dir": None, **changes})
