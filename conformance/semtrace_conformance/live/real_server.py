"""A real server behind the witness: what it is and can do, and which cases can be asked there."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from semtrace.errors import UsageError
from semtrace_conformance.messages import Model
from semtrace_conformance.witness.relay import Upstream
from semtrace_conformance.witness.script import Script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semtrace_conformance.live.work import Live
    from semtrace_conformance.suite import Case, Suite

_LOOK_S: Final = 10.0
"""Seconds that the server has to say who it is."""
_ANSWER_S: Final = 300.0
"""Seconds that it has for a few tokens: the first ones of a server that has just started take long."""
_LOCK: Final = "semtrace_output_ids"
_SHOWN: Final = 200


class ServerFacts(Model):
    """What a certificate says of the real server to which replays were sent.

    Attributes:
        url: where it is.
        model: the model that was asked.
        version: what `GET /version` says; null if nothing.
        max_model_len: most tokens of a request, output included; null if it does not say.
        locks_tokens: whether it generated the ids in `vllm_xargs`.
        end_token: whether the end token of the cases ended an output there.
        embeddings: whether the model embeds.
    """

    url: str
    model: str
    version: str | None = None
    max_model_len: int | None = None
    locks_tokens: bool
    end_token: bool
    embeddings: bool


@dataclass(frozen=True)
class RealServer:
    """A real server: how to reach it, and what it is."""

    upstream: Upstream
    facts: ServerFacts


def look(url: str, model: str | None, cases: Iterable[Case]) -> RealServer:
    """Ask a server who it is and what it can do.

    Args:
        url: `http://HOST:PORT`, perhaps with a path before `/v1`.
        model: the model to ask, if it has several.
        cases: the cases that are to be asked: their token ids must be ids of the server's model.

    Raises:
        UsageError: it is not there, is no such server, or has too few token ids.
    """
    upstream = _parsed(url)
    shown = url.rstrip("/")
    document = _get(upstream, shown, "/v1/models")
    listed = [each for each in (document or {}).get("data") or () if isinstance(each, dict) and "id" in each]
    if not listed:
        raise _wrong(
            f"the server at {shown} lists no model at /v1/models", "is it a server that speaks like OpenAI's?"
        )
    names = [str(each["id"]) for each in listed]
    if model is None and len(names) > 1:
        raise _wrong(
            f"the server at {shown} has {len(names)} models", f"--server-model: {', '.join(names[:10])}"
        )
    if model is not None and model not in names:
        raise _wrong(f"the server at {shown} has no model {model!r}", f"it has {', '.join(names[:10])}")
    chosen = listed[0 if model is None else names.index(model)]
    name = str(chosen["id"])
    if len(names) > 1:
        upstream = upstream.model_copy(update={"models": {**(document or {}), "data": [chosen]}})
    version = (_get(upstream, shown, "/version", needed=False) or {}).get("version")
    vocabularies = [each.ask["vocabulary"] for each in cases if each.witness is not None]
    _check_vocabulary(upstream, shown, name, max((each["size"] for each in vocabularies), default=0))
    first = min((each["first"] for each in vocabularies), default=0)
    locks, ends = _locks(upstream, shown, name, first)
    status, _ = _post(upstream, shown, "/v1/embeddings", {"model": name, "input": [first]})
    most = chosen.get("max_model_len")
    facts = ServerFacts(
        url=shown,
        model=name,
        version=version if isinstance(version, str) else None,
        max_model_len=most if isinstance(most, int) else None,
        locks_tokens=locks,
        end_token=ends,
        embeddings=status == 200,
    )
    return RealServer(upstream, facts)


def left_out(suite: Suite, case: Case, server: ServerFacts) -> str | None:
    """Why a case cannot be asked where a real server answers, None if it can.

    Args:
        suite: the suite.
        case: the case.
        server: the server.
    """
    if case.witness is None:
        return None
    if (reason := _scripted(case.witness)) is not None:
        return reason
    if case.base is not None:
        reason = left_out(suite, suite.cases[case.base], server)
        return None if reason is None else f"its base cannot be asked: {reason}"
    live = suite.expected(case).live
    return None if live is None else _lacking(live, server)


def _scripted(script: Script) -> str | None:
    """What of the server has to be scripted."""
    plain = Script()
    if script.refuse_connections or any(rule.fault is not None for rule in script.rules):
        return "it needs faults on cue"
    if any(rule.service is not None for rule in script.rules):
        return "it needs answers that take a time by script"
    names = ("context", "token_ids", "token_lock", "length_lock", "tokenize", "usage")
    if any(getattr(script, name) != getattr(plain, name) for name in names):
        return "it needs a server that can do less, or says less"
    return None


def _lacking(live: Live, server: ServerFacts) -> str | None:
    """What of the work the server cannot do."""
    sent = [each for each in live.operations if each.sent]
    if any(each.output_tokens is None for each in sent) and not server.embeddings:
        return "its model does not embed"
    longest = max(((each.prompt_tokens or 0) + (each.output_tokens or 0) for each in sent), default=0)
    if server.max_model_len is not None and longest > server.max_model_len:
        return f"a request has {longest} tokens, the server takes {server.max_model_len}"
    if live.mode == "token_locked" and not server.locks_tokens:
        return "the server does not lock tokens by vllm_xargs.semtrace_output_ids"
    if any(each.finish == "stop" for each in sent) and not server.end_token:
        return "the server does not end an output by the end token of the cases"
    return None


# -- asking it ------------------------------------------------------------------------------------------------


def _parsed(url: str) -> Upstream:
    parts = urlsplit(url)
    hint = (
        "http://HOST:PORT, without credentials; to a server that speaks https, go through a proxy of your own"
    )
    try:
        port = parts.port or 80
    except ValueError as error:
        raise _wrong(f"--server has no port that there is: {error}", hint) from error
    if parts.scheme != "http" or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise _wrong("--server is no URL of the form that is needed", hint)
    return Upstream(host=parts.hostname, port=port, prefix=parts.path.rstrip("/").removesuffix("/v1"))


def _check_vocabulary(upstream: Upstream, shown: str, model: str, size: int) -> None:
    if not size:
        return
    body = {"model": model, "prompt": [size - 1], "max_tokens": 1}
    status, text = _post(upstream, shown, "/v1/completions", body)
    if status != 200:
        raise _wrong(
            f"the server at {shown} does not take a prompt of the token id {size - 1}, which the cases use: status {status}, "
            f"{text[:_SHOWN]}",
            f"its model must have token ids up to {size - 1}, and it must take prompts of ids",
        )


def _locks(upstream: Upstream, shown: str, model: str, first: int) -> tuple[bool, bool]:
    """Whether it generates the ids that it is told, and ends by the end token of the cases, where that may end it."""
    wanted = [first + 1, Script().eos, first + 2]
    body = {
        "model": model, "prompt": [first], "max_tokens": 3, "return_token_ids": True, "ignore_eos": False,
        "vllm_xargs": {_LOCK: wanted},
    }  # fmt: skip
    status, text = _post(upstream, shown, "/v1/completions", body)
    choices = (_json(text) or {}).get("choices") if status == 200 else None
    ids = choices[0].get("token_ids") if isinstance(choices, list) and choices else None
    return ids in (wanted, wanted[:2]), ids == wanted[:2]


def _get(upstream: Upstream, shown: str, path: str, *, needed: bool = True) -> dict[str, Any] | None:
    status, text = _exchange(upstream, shown, "GET", path, None, _LOOK_S)
    if status == 200:
        return _json(text)
    if needed:
        raise _wrong(f"the server at {shown} answers {path} with status {status}", "is it the right URL?")
    return None


def _post(upstream: Upstream, shown: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    return _exchange(upstream, shown, "POST", path, json.dumps(body).encode(), _ANSWER_S)


def _exchange(
    upstream: Upstream, shown: str, method: str, path: str, body: bytes | None, limit_s: float
) -> tuple[int, str]:
    link = http.client.HTTPConnection(upstream.host, upstream.port, timeout=limit_s)
    headers = {} if body is None else {"content-type": "application/json"}
    try:
        link.request(method, upstream.prefix + path, body, headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        said = str(error) or type(error).__name__
        raise _wrong(
            f"the server at {shown} is not there: {said}", "start it first, or give another URL"
        ) from error
    finally:
        link.close()


def _json(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _wrong(message: str, hint: str) -> UsageError:
    return UsageError(message, code="certify.server", hint=hint)
