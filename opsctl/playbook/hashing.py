"""A fingerprint of what the user asked for: resume skips only what is still asked for in the same way."""

from __future__ import annotations

import hashlib
import json

from pydantic import BaseModel


def content_hash(model: BaseModel) -> str:
    """Return 32 hex digits (128 bits of SHA-256) over the model's class and its values, in canonical JSON.

    Comments, order of keys and how an expression was written do not count; every value does, defaults too.
    """
    text = json.dumps(
        [type(model).__name__, model.model_dump(mode="json")], sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
