from __future__ import annotations

import pytest

from opsctl.trace.markers import read_marker


@pytest.mark.parametrize(
    ("name", "kind", "batch"),
    [
        ("execute_context_0(0)_generation_8(8)", "decode", 8),
        ("execute_context_1(512)_generation_0(0)", "prefill", 1),
        ("execute_context_2(1024)_generation_6(6)", "mixed", 8),
        ("execute_context_0(0)_generation_0(0)", "idle", 0),
        ("execute_77_context_3(sq128sk256)_generation_2(sq1sk300)", "mixed", 5),
        ("execute_new_0_cached_4", "decode", 4),
        ("execute_new_2_cached_0", "prefill", 2),
        ("step[DECODE bs=16]", "decode", 16),
        ("step[EXTEND bs=2 toks=107]", "prefill", 2),
        ("step[MIXED bs=2]", "mixed", 2),
        ("step[TARGET_VERIFY bs=2]", "other", 2),
        ("ProfilerStep#7", "other", None),
    ],
)
def test_markers(name: str, kind: str, batch: int | None) -> None:
    marker = read_marker(name)
    assert marker is not None
    assert (marker.kind, marker.batch) == (kind, batch)


@pytest.mark.parametrize("name", ["aten::mm", "gpu_model_runner: forward", "execute_model", "gloo:all_reduce", ""])
def test_other_spans_are_none(name: str) -> None:
    assert read_marker(name) is None
