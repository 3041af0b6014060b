"""MetaGPT's configuration (`config2.yaml`): the model, and how it is asked. Keys and addresses are not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

from semtrace.errors import FormatError
from semtrace_adapters.base import refuse_samples

from .lines import read_text

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS: Final = {"max_token": "max_tokens", "temperature": "temperature", "stream": "stream"}
"""Members of the configuration that a request carries, and what they are called there."""


@dataclass(frozen=True)
class Config:
    """The model's name and the generation settings that the configuration states."""

    model: str | None
    settings: dict[str, object]


def read_config(path: Path) -> Config:
    """Read a configuration.

    Raises:
        FormatError: it has no member `llm`, or asks for several answers to a request.
        UsageError: the file cannot be read.
    """
    text, _ = read_text(path)
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"not YAML: {error}", code="metagpt.config", path=str(path)) from error
    if not isinstance(value, dict) or not isinstance(value.get("llm"), dict):
        raise FormatError("not a MetaGPT configuration: it has no llm", code="metagpt.config", path=str(path))
    llm = value["llm"]
    for member in ("n", "best_of"):
        refuse_samples(llm.get(member), f"{path}, llm.{member}")
    model = llm.get("model")
    settings = {
        name: llm[key] for key, name in _SETTINGS.items() if isinstance(llm.get(key), (bool, int, float))
    }
    return Config(model if isinstance(model, str) and model else None, settings)
