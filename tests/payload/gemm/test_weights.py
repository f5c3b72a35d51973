import math

import pytest
import torch

from opsctl.payload.gemm.weights import (
    product_in_float64,
    random_dense,
    random_quantised,
    relative_error,
)


def test_dequantised_is_value_minus_eight_times_its_groups_scale() -> None:
    weight = random_quantised(torch, 8, 64, 32, device="cpu", seed=3)
    seen = weight.dequantised(torch, 2, 5)
    for row in range(2, 5):
        for column in (0, 31, 32, 63):
            expected = (int(weight.values[row, column]) - 8) * float(weight.scales[column // 32, row])
            assert float(seen[row - 2, column]) == expected


def test_one_group_a_column() -> None:
    weight = random_quantised(torch, 8, 64, -1, device="cpu", seed=3)
    assert (weight.group, tuple(weight.scales.shape)) == (64, (1, 8))


def test_a_group_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="no multiple of the group"):
        random_quantised(torch, 8, 48, 32, device="cpu", seed=3)


def test_the_reference_in_slices_is_the_reference() -> None:
    x = random_dense(torch, (3, 16), device="cpu", seed=1)
    weight = random_dense(torch, (10_000, 16), device="cpu", seed=2)
    expected = x.to(torch.float64) @ weight.to(torch.float64).t()
    assert torch.equal(product_in_float64(torch, x, weight), expected)


def test_relative_error() -> None:
    reference = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert relative_error(torch, torch.tensor([[3.0, 4.5]]), reference) == pytest.approx(0.1)
    assert math.isinf(relative_error(torch, torch.tensor([[float("nan"), 4.0]]), reference))
