"""Which model a kernel stage measures: the built-in one, or the served model's own config.json. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.errors import StageError
from opsctl.nearest import suggestion
from opsctl.stages.base import StageContext
from opsctl.stages.models import KIMI_K25, ModelShapes, derive

KIMI = "kimi-k2.5"
SERVED = "served"
_DEFAULT_RANKS = {KIMI: 8}


def problems_of_model(model: str) -> Iterable[tuple[str, str]]:
    """Yield the problem of a name that is no model's: its shapes would be those of another."""
    if model not in (KIMI, SERVED):
        words = f"wanted `{SERVED}` (the served model's own config.json) or a built-in model, found {model!r}"
        yield "model", words + suggestion(model, (KIMI, SERVED))


def model_shapes(
    model: str, context: StageContext, *, tensor_parallel: int | None = None, expert_parallel: int = 1
) -> ModelShapes:
    """Return the shapes of a model, at the asked tensor-parallel degree, or else that of what serves or of production.

    ``model`` is ``kimi-k2.5``, or ``served`` for the config.json that the context carries. Raises StageError.
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
