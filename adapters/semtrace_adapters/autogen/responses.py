"""What a model answered, from the forms in which AutoGen's clients log it.

The form of the message is the one of the OpenAI interface: ``content``, and ``tool_calls`` with their ids.
"""

from __future__ import annotations

import json
from typing import Any

from semtrace_adapters.autogen.shape import count, obj, objs, text
from semtrace_adapters.base import refuse_samples


def tool_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in wire form; arguments that are no text become JSON text."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}


def tool_calls(items: Any) -> list[dict[str, Any]]:
    """Tool calls in wire form of AutoGen's function calls (``id``, ``name``, ``arguments``)."""
    return [tool_call(c.get("id"), c.get("name"), c.get("arguments")) for c in objs(items)]


def answer_of(response: Any, where: str) -> tuple[dict[str, Any] | None, str | None]:
    """The assistant message and the finish reason of a logged response.

    Args:
        response: an OpenAI chat completion, AutoGen's ``CreateResult`` (what a streamed call is logged with), or a
            response of Anthropic's or Ollama's interface.
        where: the place in the sources, for messages.

    Returns:
        The message's members (``content``, ``tool_calls``) and the reason; None for what is not understood.

    Raises:
        FormatError: there are several answers.
    """
    if not isinstance(response, dict):
        return None, None
    choices = objs(response.get("choices"))
    refuse_samples(len(choices), where)
    if choices:
        message = choices[0].get("message")
        if not isinstance(message, dict):
            return None, None
        asked = [c for c in objs(message.get("tool_calls")) if isinstance(c.get("function"), dict)]
        return _members(message.get("content"), asked), text(choices[0].get("finish_reason"))
    if isinstance(response.get("message"), dict):  # Ollama
        message = response["message"]
        functions = [(c.get("id"), obj(c.get("function"))) for c in objs(message.get("tool_calls"))]
        asked = [tool_call(i, f.get("name"), f.get("arguments")) for i, f in functions if f]
        return _members(message.get("content"), asked), text(response.get("done_reason"))
    content = response.get("content")
    blocks = objs(content)
    if any("type" in b for b in blocks):  # Anthropic
        words = "".join(text(b.get("text")) or "" for b in blocks if b.get("type") == "text")
        used = [b for b in blocks if b.get("type") == "tool_use"]
        asked = [tool_call(b.get("id"), b.get("name"), b.get("input")) for b in used]
        return _members(words or None, asked), text(response.get("stop_reason"))
    if isinstance(content, list):  # CreateResult with function calls
        return _members(None, tool_calls(content)), text(response.get("finish_reason"))
    if isinstance(content, str):
        return _members(content, []), text(response.get("finish_reason"))
    return None, None


def _members(content: Any, asked: list[dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if content is not None:
        made["content"] = content
    if asked:
        # Clients log members beside these: an index in streams, nulls of the SDK's models.
        kept = ("id", "type", "function")
        made["tool_calls"] = [{k: c[k] for k in kept if c.get(k) is not None} for c in asked]
    return made


def details_of(response: Any) -> dict[str, int]:
    """Cached prompt tokens and reasoning tokens, where the response tells them."""
    usage = obj(obj(response).get("usage"))
    made: dict[str, int] = {}
    cached = count(obj(usage.get("prompt_tokens_details")).get("cached_tokens"))
    reasoning = count(obj(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    if cached is not None:
        made["cached"] = cached
    if reasoning is not None:
        made["reasoning"] = reasoning
    return made
