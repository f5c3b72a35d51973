from __future__ import annotations

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_goes_down_to_zero_and_no_further() -> None:
    clock = Clock()
    deadline = Deadline(10, "a wait", clock=clock)
    clock.now += 4
    assert deadline.remaining() == pytest.approx(6)
    assert not deadline.expired
    clock.now += 100
    assert deadline.remaining() == 0
    assert deadline.expired


def test_a_part_never_outlasts_the_whole() -> None:
    clock = Clock()
    whole = Deadline(10, "the whole", clock=clock)
    clock.now += 8
    assert whole.within(5, "a part").remaining() == pytest.approx(2)
    assert whole.within(1, "a part").remaining() == pytest.approx(1)


def test_an_expired_deadline_says_what_did_not_end_and_what_was_seen() -> None:
    clock = Clock()
    deadline = Deadline(10, "load of vllm", clock=clock)
    deadline.check()
    clock.now += 10
    with pytest.raises(DeadlineExceeded, match="load of vllm did not end within 10 s") as caught:
        deadline.check(seen="29/64 shards", where="kimi", hint="journalctl")
    assert caught.value.lines()[1:] == ["  seen:   29/64 shards", "  where:  kimi", "  next:   journalctl"]
