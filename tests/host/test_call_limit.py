from __future__ import annotations

import socket
import threading

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded
from opsctl.host.call_limit import cut_at


def test_a_call_without_a_limit_is_cut() -> None:
    near, far = socket.socketpair()
    late = pytest.raises(DeadlineExceeded, match=r"did not end within 0.1 s")
    with near, far, late, cut_at(Deadline(0.1, "a read"), lambda: far.shutdown(socket.SHUT_RDWR)):
        near.recv(1)


def test_an_error_of_its_own_is_not_called_a_deadline() -> None:
    with pytest.raises(ValueError, match="own"), cut_at(Deadline(5, "x"), lambda: None):
        raise ValueError("own")
    assert [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)] == []


def test_nothing_is_begun_past_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded), cut_at(Deadline(0, "x"), lambda: None):
        pytest.fail("the block must not run")
