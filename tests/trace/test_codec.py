"""Documents to JSON and back, strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import TraceError
from opsctl.trace import TraceAnalysis, analyse
from tests.trace.kineto import decode_events, kineto, write


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return analyse([write(tmp_path / "rank0.json", kineto(decode_events()))]).to_json()


def test_a_document_comes_back_equal(document: dict[str, Any]) -> None:
    assert TraceAnalysis.from_json(document).to_json() == document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 1, "not an analysis of format 2"),
        (("ranks",), 5, "ranks"),
        (("busy_us",), "fast", "busy_us"),
        (("busy_us",), float("nan"), "busy_us"),
        (("steps", "decode", "count"), 1.5, "steps.decode.count"),
        (("steps", "decode", "count"), True, "steps.decode.count"),
        (("kernels", 0, "name"), None, "kernels[0].name"),
        (("kernels", 0, "colour"), "red", "kernels[0]"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(
    document: dict[str, Any], path: tuple[str | int, ...], value: object, message: str
) -> None:
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(TraceError) as caught:
        TraceAnalysis.from_json(document)
    assert message in caught.value.message


def test_a_field_without_a_default_must_be_there(document: dict[str, Any]) -> None:
    del document["kernels"][0]["calls"]
    with pytest.raises(TraceError) as caught:
        TraceAnalysis.from_json(document)
    assert caught.value.wanted == "the fields calls"
    del document["kernels"]
    assert TraceAnalysis.from_json(document).kernels == ()
