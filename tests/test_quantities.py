from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.quantities import counted, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("45m", 2700),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("0.05s", 0.05),
        (2.5, 2.5),
        ("200ms", 0.2),
        ("1s5ms", 1.005),
    ],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "5x", "s5", "-5s", "1m1h", None, True, "5 s x"])
def test_what_is_no_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="wanted a duration such as 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"), [("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("4096", 4096), (7, 7), ("1.5KiB", 1536)]
)
def test_sizes_are_read(text: object, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "5 parsecs", "-1", None, True, 2.5])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="wanted a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.42 s"), (12.34, "12.3 s"), (59.96, "1m 00s"), (250, "4m 10s"), (3725, "1h 02m"), (3599.7, "1h 00m")],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 10**7))
def test_a_written_duration_never_shows_sixty_of_anything(seconds: int) -> None:
    assert "60" not in format_duration(seconds).replace("60h", "").split()[-1]


@pytest.mark.parametrize(
    ("count", "text"), [(14336, "14.0 KiB"), (512 << 20, "512 MiB"), (5, "5 B"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize(("count", "words"), [(0, "0 nights"), (1, "1 night"), (2, "2 nights")])
def test_counted(count: int, words: str) -> None:
    assert counted(count, "night") == words
