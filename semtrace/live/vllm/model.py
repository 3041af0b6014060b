"""What a folder of a model says of it, without loading it."""

from __future__ import annotations

import json
from pathlib import Path

from semtrace.errors import UsageError


def vocabulary_size(folder: str) -> int | None:
    """How many token ids the model in a folder has; None if its configuration does not say.

    Raises:
        UsageError: it is no folder of a model.
    """
    path = Path(folder) / "config.json"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no model that vLLM reads: {type(error).__name__}",
            code="vllm.model",
            path=str(path),
            requirement="ST-VLM-001",
            hint="model is a local folder with config.json, weights and tokenizer",
        ) from None
    for part in (found, found.get("text_config")) if isinstance(found, dict) else ():
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and size > 0:
            return size
    return None
