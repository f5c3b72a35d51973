from __future__ import annotations

import pytest

from opsctl.trace.text import lane_text, name_text, nanoseconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"5230865535197.998", 5_230_865_535_197_998),
        (b"1669852800123456.789", 1_669_852_800_123_456_789),
        (b"12", 12_000),
        (b"12.3", 12_300),
        (b"0.001", 1),
        (b"-0.5", -500),
        (b"1.2345", 1_234),
        (b"1.5e3", 1_500_000),
        (b'"7.25"', 7_250),
        (b"NaN", None),
        (b"Infinity", None),
        (b"1e300", None),
        (b"1e999999999", None),
        (b"null", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_times_are_whole_nanoseconds_as_spelled(text: bytes, expected: int | None) -> None:
    assert nanoseconds(text) == expected


@pytest.mark.parametrize(
    ("raw", "text", "valid"),
    [
        (b"plain", "plain", True),
        (b"\\u0041\\n", "A\n", True),
        (b"bad \\x escape", "bad \\x escape", False),
        (b'un"escaped', 'un"escaped', False),
        (b"caf\xc3\xa9", "café", True),
        (b"bytes \xff\xfe", "bytes \ufffd\ufffd", False),
        (b"half \\ud800", "half ?", True),
        (b"line\nbreak", "line\nbreak", False),
    ],
)
def test_names_are_read_leniently_and_flagged(raw: bytes, text: str, valid: bool) -> None:
    assert name_text(raw) == (text, valid)


def test_lanes_are_text_whether_number_or_string() -> None:
    assert (lane_text(b"415"), lane_text(b'"Spans"'), lane_text(b"-1")) == ("415", "Spans", "-1")
