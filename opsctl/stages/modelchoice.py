"""Which model a kernel stage measures: the built-in one, or the served model's own config.json. Pure."""

from __future__ import annotations

from opsctl.errors import StageError
from opsctl.stages.base import StageContext
from opsctl.stages.models import KIMI_K25, ModelShapes, derive

KIMI = "kimi-k2.5"
_DEFAULT_RANKS = {KIMI: 8}


def model_shapes(
    model: str, context: StageContext, *, tensor_parallel: int | None = None, expert_parallel: int = 1
) -> ModelShapes:
    """Return the shapes of a model, at the asked tensor-parallel degree, or else that of what serves or of production.

    ``model`` is ``kimi-k2.5``, or anything else for the config.json that the context carries. Raises StageError.
    """
    config = KIMI_K25 if model == KIMI else context.model_config
    if config is None:
        raise StageError(
            f"{context.step}: the shapes of {model!r} are not known: its config.json could not be read",
            where=context.host_name,
            hint=f"name a model that is built in ({KIMI}), or give `shapes` or `sizes` of your own",
        )
    ranks = tensor_parallel or context.tensor_parallel or _DEFAULT_RANKS.get(model, 1)
    try:
        return derive(config, name=model, tensor_parallel=ranks, expert_parallel=expert_parallel)
    except ValueError as error:
        raise StageError(
            f"{context.step}: no shapes for {model} at tensor parallel {ranks}, expert parallel {expert_parallel}",
            seen=str(error),
            where=context.host_name,
        ) from error
