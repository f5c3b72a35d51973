from __future__ import annotations

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import HostKeyRejected, TransportLost
from opsctl.retrying import retrying


def test_a_listed_error_is_tried_again_until_it_goes() -> None:
    tries = []
    for attempt in retrying(TransportLost, deadline=Deadline(5, "x"), first=0.001):
        with attempt:
            tries.append(1)
            if len(tries) < 3:
                raise TransportLost("gone")
    assert len(tries) == 3


@pytest.mark.parametrize("error", [HostKeyRejected("changed"), KeyboardInterrupt(), ValueError("x")])
def test_anything_else_is_raised_at_once(error: BaseException) -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        retrying(TransportLost, deadline=Deadline(5, "x"), first=0.001)(fail)
    assert len(tries) == 1


def test_the_deadline_ends_it_with_the_last_error() -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise TransportLost(f"try {len(tries)}")

    with pytest.raises(TransportLost, match="try") as caught:
        retrying(TransportLost, deadline=Deadline(0.05, "x"), first=0.01, longest=0.02)(fail)
    assert len(tries) > 1
    assert str(caught.value) == f"try {len(tries)}"
