"""How a step log names itself and where it is, and how vLLM names the requests that it is sent."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

FORMAT: Final = "semtrace-vllm-steps"
VERSION: Final = 1
VARIABLE: Final = "SEMTRACE_VLLM_LOG"
"""The environment variable that names the file."""
OPTION: Final = "semtrace_step_log"
"""The member of vLLM's additional configuration that names it."""
PLUGINS: Final = Path(__file__).with_name("plugins")
"""The folder by which `vllm serve` finds our stat logger, if it is on its path; on no other, since vLLM loads all that it finds."""
_KIND: Final = re.compile(r"(chatcmpl|generate-tokens|cmpl|embd|pooling|pool|score|classify)-")
_ONE_PROMPT: Final = ("chatcmpl", "generate-tokens")
"""Kinds whose requests have one prompt, which vLLM does not number."""
_RANDOM: Final = re.compile(r"-[0-9a-f]{8}$")
_PROMPT: Final = re.compile(r"-\d+$")


def log_path(additional_config: Any, rank: int) -> str | None:
    """Where the step log of an engine is; None if nobody says.

    Args:
        additional_config: vLLM's additional configuration.
        rank: the engine among those of the server.
    """
    path = additional_config.get(OPTION) if isinstance(additional_config, dict) else None
    path = path or os.environ.get(VARIABLE)
    if not path:
        return None
    return f"{path}.{rank}" if rank else str(path)


def external(name: str) -> str:
    """The scheduler's id of a request as vLLM's front has it: without the random digits."""
    return _RANDOM.sub("", name)


def without_digits(names: Sequence[str]) -> list[str]:
    """The scheduler's ids of a server without the random digits after them: equal for requests that came with equal ids.

    A server adds them to all or to none, so none are taken off where one has none.

    Args:
        names: the scheduler's ids, all of a server's.
    """
    if all(_RANDOM.search(name) for name in names):
        return [_RANDOM.sub("", name) for name in names]
    return list(names)


def sent_id(name: str, known: Container[str]) -> str | None:
    """The `X-Request-Id` with which a request came, None if it is none of those that are known (ST-VLM-013).

    vLLM puts the kind of the request before it, and after it the number of the prompt, where a request may have several,
    and eight random hexadecimal digits, unless it is told not to.

    Args:
        name: the scheduler's id.
        known: the ids that were sent.
    """
    kind = _KIND.match(name)
    bare = name[kind.end() :] if kind else name
    for whole in (_RANDOM.sub("", bare), bare):
        for each in (_PROMPT.sub("", whole), whole) if kind and kind[1] not in _ONE_PROMPT else (whole,):
            if each in known:
                return each
    return None
