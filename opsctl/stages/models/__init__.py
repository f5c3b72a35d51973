"""What a model makes a GPU do in one decode step: the shapes of its matrix products and its collectives. Pure."""

from __future__ import annotations

from opsctl.stages.models.derive import derive
from opsctl.stages.models.kimi import KIMI_K25
from opsctl.stages.models.shapes import DenseOp, ExpertsOp, ModelShapes, experts_hit

__all__ = ["KIMI_K25", "DenseOp", "ExpertsOp", "ModelShapes", "derive", "experts_hit"]
