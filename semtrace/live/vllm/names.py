"""How a step log names itself, and how vLLM names the requests that it is sent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

FORMAT: Final = "semtrace-vllm-steps"
VERSION: Final = 1
_KIND: Final = re.compile(r"(chatcmpl|generate-tokens|cmpl|embd|pooling|pool|score|classify)-")
_ONE_PROMPT: Final = ("chatcmpl", "generate-tokens")
"""Kinds whose requests have one prompt, which vLLM does not number."""
_RANDOM: Final = re.compile(r"-[0-9a-f]{8}$")
_PROMPT: Final = re.compile(r"-\d+$")


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
