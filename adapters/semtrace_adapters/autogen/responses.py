"""What a model answered, from the forms in which AutoGen's clients log it.

The form of the message is the one of the OpenAI interface: ``content``, and ``tool_calls`` with their ids.
"""

from __future__ import annotations

import json
from typing import Any


def tool_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in wire form; arguments that are no text become JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def answer_of(response: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The assistant message and the finish reason of a logged response.

    Args:
        response: an OpenAI chat completion, AutoGen's ``CreateResult`` (what a streamed call is logged with), or a
            response of Anthropic's or Ollama's interface.

    Returns:
        The message's members (``content``, ``tool_calls``) and the reason; None for what is not understood.
    """
    if not isinstance(response, dict):
        return None, None
    choices = response.get("choices")
    if isinstance(choices, list) and choices:
        message = choices[0].get("message") or {}
        return _members(message.get("content"), message.get("tool_calls")), choices[0].get("finish_reason")
    if isinstance(response.get("message"), dict):  # Ollama
        message = response["message"]
        calls = [
            tool_call(c.get("id"), c["function"].get("name"), c["function"].get("arguments"))
            for c in message.get("tool_calls") or []
            if isinstance(c.get("function"), dict)
        ]
        return _members(message.get("content"), calls), response.get("done_reason")
    content = response.get("content")
    if isinstance(content, list) and any(isinstance(b, dict) and "type" in b for b in content):  # Anthropic
        text = "".join(b.get("text", "") for b in content if b.get("type") == "text")
        calls = [
            tool_call(b.get("id"), b.get("name"), b.get("input"))
            for b in content
            if b.get("type") == "tool_use"
        ]
        return _members(text or None, calls), response.get("stop_reason")
    if isinstance(content, list):  # CreateResult with function calls
        calls = [
            tool_call(c.get("id"), c.get("name"), c.get("arguments")) for c in content if isinstance(c, dict)
        ]
        return _members(None, calls), response.get("finish_reason")
    if isinstance(content, str):
        return _members(content, None), response.get("finish_reason")
    return None, None


def _members(content: Any, calls: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if content is not None:
        made["content"] = content
    if calls:
        made["tool_calls"] = [
            {k: v for k, v in call.items() if v is not None and k in {"id", "type", "function"}}
            for call in calls
        ]
    return made


def details_of(response: Any) -> dict[str, int]:
    """Cached prompt tokens and reasoning tokens, where the response tells them."""
    usage = response.get("usage") if isinstance(response, dict) else None
    made: dict[str, int] = {}
    if isinstance(usage, dict):
        prompt, output = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        if isinstance(prompt, dict) and isinstance(prompt.get("cached_tokens"), int):
            made["cached"] = prompt["cached_tokens"]
        if isinstance(output, dict) and isinstance(output.get("reasoning_tokens"), int):
            made["reasoning"] = output["reasoning_tokens"]
    return made
