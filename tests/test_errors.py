from __future__ import annotations

import inspect

import pytest

from opsctl import errors
from opsctl.errors import DefinitionError, ExitCode, LoadFailed, OpsctlError, Problem


def test_every_exception_of_the_tree_is_in_the_picture_at_its_head() -> None:
    picture = errors.__doc__ or ""
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, OpsctlError):
            assert name in picture, name


def test_exit_codes_are_the_promised_ones() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "VERIFIED": 0,
        "FAILED": 1,
        "UNFIT": 2,
        "PRODUCTION_NOT_VERIFIED": 3,
        "HELD": 4,
        "INCONCLUSIVE": 5,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UnfitError, 2), (errors.NotGuardable, 2), (errors.HostUnreachable, 2), (errors.HostKeyRejected, 2),
        (errors.AuthenticationFailed, 2), (errors.PrivilegeMissing, 2), (errors.UnitNotFound, 2), (errors.HostHeld, 4),
        (errors.Interrupted, 130), (errors.LoadFailed, 1), (errors.LeaseLost, 1),
    ],
)  # fmt: skip
def test_each_branch_ends_in_its_code(kind: type[OpsctlError], code: int) -> None:
    assert int(kind.exit_code) == code


def test_all_problems_are_shown_in_the_order_of_the_file() -> None:
    error = DefinitionError(
        [Problem("b.yml", 3, 1, "late"), Problem("a.yml", 9, 2, "x"), Problem("b.yml", 1, 5, "early")]
    )
    assert error.lines() == ["a.yml:9:2: x", "b.yml:1:5: early", "b.yml:3:1: late", "3 problems in a.yml, b.yml"]


def test_a_failed_load_quotes_the_servers_own_lines() -> None:
    error = LoadFailed("died", lines_quoted=("CUDA out of memory",), seen="status=1")
    assert error.lines() == ["died", "  seen:   status=1", "  | CUDA out of memory"]
