"""What a request asks for, and what the answer to it is: a function of the script and of the request alone."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import rfc8785
from blake3 import blake3

from semtrace_conformance.witness.script import BYTES, EarlyEnd, WrongCount, WrongId

if TYPE_CHECKING:
    from semtrace_conformance.witness.script import Script

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
TOKENIZE: Final = "/tokenize"
_RETRY: Final = re.compile(r"(semtrace-\d+-\d+)-\d+")
_MOST: Final = 1 << 20


class RefusedError(Exception):
    """The server will not take a request; the text says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Asked:
    """What a request asks for.

    Attributes:
        path: what was asked for.
        model: the model named.
        stream, usage, ids: whether a stream, the usage in it, and token ids are asked for.
        prompt: of which kind the prompt is.
        prompt_ids: its tokens.
        prompt_digest: digest of the prompt as it came, 32 bytes.
        max_tokens, min_tokens, ignore_eos, temperature: as asked, None where nothing is said.
        lock: the output ids asked for.
        stop: ids that end the output beside the script's own.
    """

    path: str
    model: str | None = None
    stream: bool = False
    usage: bool = False
    ids: bool = False
    prompt: str | None = None
    prompt_ids: array[int] = field(default_factory=lambda: array("I"))
    prompt_digest: bytes = b""
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    lock: array[int] | None = None
    stop: frozenset[int] = frozenset()


def request_of(request_id: str | None) -> str | None:
    """An id of a request without the number of a retry."""
    match = _RETRY.fullmatch(request_id) if request_id is not None else None
    return match[1] if match else request_id


def little(ids: array[int]) -> bytes:
    """Token ids as content of a trace has them."""
    if array("I", [1]).tobytes()[0] != 1:  # a machine that is big-endian
        ids = array("I", ids)
        ids.byteswap()
    return ids.tobytes()


def tokens_of(text: str) -> array[int]:
    """The tokens of a text: one for each byte of its UTF-8 form."""
    return array("I", [byte + BYTES for byte in text.encode(errors="surrogatepass")])


def read_asked(path: str, body: Any, asked: Asked) -> None:
    """Read the body of a request into `asked`, as far as it is right.

    Raises:
        RefusedError: it is not what it must be.
    """
    if not isinstance(body, dict):
        raise RefusedError("the body is no JSON object")
    model = body.get("model")
    asked.model = model if isinstance(model, str) else None
    asked.stream = bool(body.get("stream"))
    options = body.get("stream_options")
    asked.usage = isinstance(options, dict) and bool(options.get("include_usage"))
    asked.ids = bool(body.get("return_token_ids"))
    wanted = body.get("max_completion_tokens") if path == CHAT else None
    asked.max_tokens = _count(body, "max_tokens") if wanted is None else _count(body, "max_completion_tokens")
    asked.min_tokens = _count(body, "min_tokens")
    ignore = body.get("ignore_eos")
    asked.ignore_eos = None if ignore is None else bool(ignore)
    heat = body.get("temperature")
    asked.temperature = float(heat) if isinstance(heat, (int, float)) else None
    stop = body.get("stop_token_ids")
    asked.stop = frozenset(stop) if isinstance(stop, list) else frozenset()
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and "semtrace_output_ids" in extra:
        asked.lock = _lock(extra["semtrace_output_ids"])
    _read_prompt(path, body, asked)


def _count(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise RefusedError(f"{name} is no integer from 0 to {_MOST}")
    return value


def _ids(value: Any, name: str) -> array[int]:
    try:
        return array("I", value if isinstance(value, list) else [None])
    except (TypeError, OverflowError, ValueError) as error:
        raise RefusedError(f"{name} are no token ids") from error


def _lock(value: object) -> array[int]:
    if isinstance(value, str):
        parts = value.split(",") if value else []
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise RefusedError("semtrace_output_ids are no token ids")
        return _ids([int(part) for part in parts], "semtrace_output_ids")
    return _ids(value, "semtrace_output_ids")


def _read_prompt(path: str, body: dict[str, Any], asked: Asked) -> None:
    if path == CHAT:
        messages = body.get("messages")
        if (
            not isinstance(messages, list)
            or not all(isinstance(each, dict) for each in messages)
            or not messages
        ):
            raise RefusedError("messages is no list of messages")
        asked.prompt = "messages"
        try:
            canonical = rfc8785.dumps(messages)
            parts = [f"{each.get('role')}\n{_text(each.get('content'))}\n" for each in messages]
            tools = rfc8785.dumps(body["tools"]).decode() if body.get("tools") else ""
        except rfc8785.CanonicalizationError as error:
            raise RefusedError(f"messages: {error}") from error
        asked.prompt_digest = blake3(canonical).digest()
        asked.prompt_ids = tokens_of(tools + "".join(parts))
        return
    prompt = body.get("input" if path == EMBEDDINGS else "prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        asked.prompt = "text"
        asked.prompt_digest = blake3(prompt.encode(errors="surrogatepass")).digest()
        asked.prompt_ids = tokens_of(prompt)
    else:
        asked.prompt = "token_ids"
        asked.prompt_ids = _ids(prompt, "the prompt")
        asked.prompt_digest = blake3(little(asked.prompt_ids)).digest()


def _text(content: object) -> str:
    return content if isinstance(content, str) else rfc8785.dumps(content).decode()  # type: ignore[arg-type]  # it was JSON


def check(script: Script, asked: Asked) -> int:
    """Look whether the server of the script takes a request.

    Returns:
        The most tokens that the output may have.

    Raises:
        RefusedError: it does not.
    """
    if asked.model not in script.models:
        raise RefusedError(f"The model `{asked.model}` does not exist.", 404)
    if not script.length_lock and (asked.min_tokens is not None or asked.ignore_eos is not None):
        raise RefusedError("min_tokens and ignore_eos are not known here")
    if not script.token_ids and asked.prompt == "token_ids":
        raise RefusedError("prompts of token ids are not taken here")
    count = len(asked.prompt_ids)
    if not count:
        raise RefusedError("the prompt is empty")
    if any(each >= script.vocabulary for each in (max(asked.prompt_ids), *(asked.lock or ()))):
        raise RefusedError(f"a token id is {script.vocabulary} or more")
    if asked.path == EMBEDDINGS:
        return 0
    most = asked.max_tokens
    if most is None:
        most = 16 if asked.path == COMPLETIONS else script.context - count
    if most < 1:
        raise RefusedError("max_tokens must be at least 1")
    if (asked.min_tokens or 0) > most:
        raise RefusedError("min_tokens must be at most max_tokens")
    if count + most > script.context:
        raise RefusedError(f"This model's maximum context length is {script.context} tokens")
    return most


def output(script: Script, asked: Asked, most: int, fault: Any) -> tuple[array[int], str]:
    """The tokens that the server generates, and why it stops."""
    if isinstance(fault, WrongCount):
        most = max(most + fault.delta, 0)
    seed = int.from_bytes(asked.prompt_digest[:8], "little")
    width = script.vocabulary - script.free
    ids = array("I", [script.free + (seed + 7919 * at) % width for at in range(most)])
    lock = (asked.lock or array("I")) if script.token_lock else array("I")
    ids[: len(lock[:most])] = lock[:most]
    last = most
    reason = "length"
    if not asked.ignore_eos:
        least = max(asked.min_tokens or 0, 1)
        if not lock and script.eos_after is not None and max(script.eos_after, least) <= most:
            ids[max(script.eos_after, least) - 1] = script.eos
        ends = asked.stop | {script.eos}
        for at in range(least - 1, most):
            if ids[at] in ends:
                last, reason = at + 1, "stop"
                break
    if isinstance(fault, EarlyEnd) and fault.after_tokens <= last:
        last, reason = fault.after_tokens, "stop"
        ids[last - 1] = script.eos
    if isinstance(fault, WrongId) and fault.position < last:
        ids[fault.position] = script.free if ids[fault.position] != script.free else script.free + 1
    return ids[:last], reason
