"""What a server can do, found by asking it: each probe is one thing, with the evidence for its answer.

Servers differ, and so do versions and their options: nothing here goes by a server's name. Members that a server might
read over in silence are asked for twice, once with a value that no server that knows them takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import ReplayError
from semtrace.live.answers import has_embedding
from semtrace.live.asking import ANNOTATION, CHAT, COMPLETIONS, EMBEDDINGS, GENERATE, LOCK_ARGUMENT
from semtrace.live.client import Client
from semtrace.live.connections import Pool
from semtrace.live.examination import Examination, Probe, clean, named
from semtrace.live.settings import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semtrace.live.client import Reply
    from semtrace.live.examination import Found
    from semtrace.live.settings import HttpSettings, Key

TIMEOUT_NS: Final = 15_000_000_000
"""Time limit of each probe, in ns."""
MOST_SILENT: Final = 2
"""After so many requests in a row without a whole answer nothing more is asked."""
MOST_ID: Final = (1 << 31) - 1
"""The highest token id that is tried."""
LENGTH: Final = 24
"""Tokens of output asked for where it is looked at whether as many come."""

PROMPT: Final = (11, 7, 12, 9, 8, 10, 13, 6)
"""Token ids that are sent where any would do: low ones, which every vocabulary has."""
FORCED: Final = (9, 6, 12, 7, 11)
"""Token ids that a server is told to generate: no model would by itself."""
MESSAGES: Final = [{"role": "user", "content": "one two three"}]
TOOL: Final = {"name": "look", "description": "four five", "parameters": {"type": "object", "properties": {}}}
TOOLS: Final = [{"type": "function", "function": TOOL}]


def examine(
    settings: HttpSettings,
    key: Key | None,
    *,
    only: Iterable[str] | None = None,
    timeout_ns: int = TIMEOUT_NS,
) -> Examination:
    """Find out what a server can do; never raises for anything that a server does.

    Args:
        settings: where it is.
        key: what it is shown.
        only: names of the probes wanted; all of `PROBES` if left out. Those that others rest on are made too.
        timeout_ns: time limit of each probe, in ns.
    """
    target = Target(settings.url)
    pool = Pool(target, most=4)
    try:
        doctor = Doctor(settings, Client(pool, target, key, timeout_ns))
        try:
            pool.establish(timeout_ns)
        except ReplayError as error:
            doctor.examination.probes["reachable"] = Probe("reachable", "no", error.message)
            wanted = list(PROBES) if only is None else list(only)
            for name in wanted:
                if name != "reachable":
                    doctor.examination.probes[name] = Probe.left_out(name, "it cannot be connected to")
            return doctor.examination
        doctor.run(PROBES if only is None else only)
        return doctor.examination
    finally:
        pool.close()


class Doctor:
    """Asks one server."""

    def __init__(self, settings: HttpSettings, client: Client) -> None:
        self.examination = Examination(settings.url, model=settings.model)
        self._client = client
        self._silent = 0
        first = settings.vocabulary.first if settings.vocabulary is not None else 0
        self._prompt = [first + each for each in PROMPT]
        self._forced = [first + each for each in FORCED]

    def run(self, names: Iterable[str]) -> None:
        """Make the probes of these names, and those that they rest on."""
        wanted = set(names) | {"reachable", "models", "token_prompts", "chat"}
        for name, (_, probe) in PROBES.items():
            if name not in wanted:
                continue
            if self._silent >= MOST_SILENT:
                made = Probe.left_out(name, f"{MOST_SILENT} requests in a row got no whole answer")
            elif name not in ("reachable", "models") and (why := self.examination.no_model()) is not None:
                made = Probe.left_out(name, why)
            elif name in _GENERATING and not self._generates():
                made = Probe.left_out(name, "nothing can be generated")
            else:
                made = probe(self)
            self.examination.probes[name] = made

    # --- asking ----------------------------------------------------------------------------------------

    def _ask(self, path: str, value: dict[str, Any] | None = None, name: str | None = None) -> Reply:
        reply = self._client.ask(path, value, name)
        self._silent = 0 if reply.failure is None else self._silent + 1
        return reply

    def _generate(self, **members: Any) -> Reply:
        """A short generation, on the interface that works: token ids if it takes them, else chat."""
        prompt: object
        if self.examination.can("token_prompts") or not self.examination.can("chat"):
            path, name, prompt = COMPLETIONS, "prompt", self._prompt
        else:
            path, name, prompt = CHAT, "messages", MESSAGES
        value = {"model": self.examination.model, name: prompt, "max_tokens": 4, "temperature": 0, **members}
        return self._ask(path, value)

    def _generates(self) -> bool:
        """Whether anything can be generated, as far as is known."""
        return not (self.examination.cannot("token_prompts") and self.examination.cannot("chat"))

    def _not_refused(self, **members: Any) -> dict[str, Any]:
        """Those of some members that can be sent."""
        probe = {"return_token_ids": "token_ids_back"}
        return {
            name: value
            for name, value in members.items()
            if not self.examination.refuses(probe.get(name, name))
        }

    def _probe(self, name: str, found: Found, asked: str, reply: Reply) -> Probe:
        return Probe(name, found, f"{asked}: {self._said(reply)}", reply.status or None)

    def _said(self, reply: Reply) -> str:
        """What came, in one line: a status and, of an error, the server's message."""
        if reply.failure is not None and not reply.status:
            return reply.detail
        text = f"status {reply.status}"
        if reply.failure is not None:
            return f"{text}, then {reply.detail}"
        if reply.status != 200:
            message = clean(self._client.hide(_message(reply)))
            return f"{text}, {message}" if message else text
        return text

    def _known(self, name: str, valid: object, invalid: object) -> Probe:
        """Whether a server knows a member: it takes a value that is right, and refuses one that is wrong."""
        right = self._generate(**{name: valid})
        if right.answer().failure is not None:
            found: Found = "no" if 400 <= right.status < 500 and right.status != 429 else "unknown"
            return self._probe(name, found, f"{name} of a right kind", right)
        wrong = self._generate(**{name: invalid})
        if wrong.status in (400, 422):
            return Probe(
                name, "yes", f"taken; refused where it is of a wrong kind: {self._said(wrong)}", wrong.status
            )
        if wrong.status == 200:
            return Probe(name, "no", "read over: one of a wrong kind was not refused", wrong.status)
        return self._probe(name, "unknown", f"{name} of a wrong kind", wrong)

    # --- probes ----------------------------------------------------------------------------------------

    def reachable(self) -> Probe:
        """Whether it speaks HTTP. Also what it says of itself."""
        reply = self._ask("/version")
        server = reply.fields.get(b"server")
        if server is not None:
            self.examination.server = clean(self._client.hide(server.decode("latin-1")))
        version = reply.members().get("version")
        if isinstance(version, str):
            self.examination.version = clean(self._client.hide(version))
        return self._probe("reachable", "yes" if reply.status else "no", "GET /version", reply)

    def models(self) -> Probe:
        """Which models it lists."""
        examination = self.examination
        reply = self._ask("/v1/models")
        data = reply.members().get("data")
        cards = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else None
        if cards is None:
            return self._probe("models", "no" if reply.status else "unknown", "GET /v1/models", reply)
        examination.models = [each["id"] for each in cards if isinstance(each.get("id"), str)]
        if examination.model is None and len(examination.models) == 1:
            examination.model = examination.models[0]
        for card in cards:
            longest = card.get("max_model_len")
            if card.get("id") == examination.model and type(longest) is int and longest > 0:
                examination.max_model_len = longest
        count = len(examination.models)
        listed = f"it lists {count}" + (f": {named(examination.models)}" if count else "")
        if count and examination.model is not None and examination.model not in examination.models:
            return Probe("models", "no", f"{listed}; not {clean(examination.model)}", reply.status)
        return Probe("models", "yes", listed, reply.status)

    def token_prompts(self) -> Probe:
        """Whether it takes token ids as a prompt, as that many tokens."""
        value = {"model": self.examination.model, "prompt": self._prompt, "max_tokens": 1, "temperature": 0}
        reply = self._ask(COMPLETIONS, value)
        answer = reply.answer()
        asked = f"{len(self._prompt)} ids"
        if answer.failure is not None:
            found: Found = "no" if 400 <= reply.status < 500 and reply.status != 429 else "unknown"
            return self._probe("token_prompts", found, asked, reply)
        if answer.prompt_tokens is None:
            return Probe("token_prompts", "unknown", f"{asked}: taken, but not counted", reply.status)
        found = "yes" if answer.prompt_tokens == len(self._prompt) else "no"
        return Probe("token_prompts", found, f"{asked}: counted as {answer.prompt_tokens}", reply.status)

    def chat(self) -> Probe:
        """Whether it takes chat messages."""
        value = {"model": self.examination.model, "messages": MESSAGES, "max_tokens": 1, "temperature": 0}
        reply = self._ask(CHAT, value)
        failure = reply.answer().failure
        found: Found = "yes" if failure is None else "no" if 400 <= reply.status < 500 else "unknown"
        return self._probe("chat", found, "one message", reply)

    def tools(self) -> Probe:
        """Whether it takes chat messages that offer tools."""
        return self._with_tools("tools")

    def tools_uncalled(self) -> Probe:
        """Whether it takes them where it is told to call none."""
        return self._with_tools("tools_uncalled", tool_choice="none")

    def _with_tools(self, name: str, **members: str) -> Probe:
        if not self.examination.can("chat"):
            return Probe.left_out(name, "it takes no chat messages")
        value = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 1, "temperature": 0, **members}
        reply = self._ask(CHAT, {"model": self.examination.model, **value})
        failure = reply.answer().failure
        refused = 400 <= reply.status < 500 and reply.status != 429
        found: Found = "yes" if failure is None else "no" if refused else "unknown"
        asked = "one tool" + "".join(f", {key}: {each}" for key, each in members.items())
        return self._probe(name, found, asked, reply)

    def stream(self) -> Probe:
        """Whether it streams."""
        reply = self._generate(stream=True)
        kind = reply.fields.get(b"content-type", b"").lower()
        whole = reply.answer().failure is None and kind.startswith(b"text/event-stream")
        return self._probe("stream", "yes" if whole else "no" if reply.status else "unknown", "stream", reply)

    def stream_usage(self) -> Probe:
        """Whether a stream ends with the counts."""
        answer = (reply := self._generate(stream=True, stream_options={"include_usage": True})).answer()
        told = answer.failure is None and answer.prompt_tokens is not None
        found: Found = "yes" if told else "no" if reply.status else "unknown"
        return self._probe("stream_usage", found, "include_usage", reply)

    def token_ids_back(self) -> Probe:
        """Whether it returns the ids of the tokens that it generated."""
        answer = (reply := self._generate(return_token_ids=True)).answer()
        if not answer.has_ids:
            return self._probe(
                "token_ids_back", "no" if reply.status else "unknown", "return_token_ids", reply
            )
        return Probe("token_ids_back", "yes", f"return_token_ids: {len(answer.ids)} ids came", reply.status)

    def ignore_eos(self) -> Probe:
        """Whether it can be told to go on after an end token."""
        return self._known("ignore_eos", True, "neither")

    def min_tokens(self) -> Probe:
        """Whether it can be told the least number of output tokens."""
        return self._known("min_tokens", 4, "few")

    def length(self) -> Probe:
        """Whether an output is as long as it is told to be."""
        members = self._not_refused(ignore_eos=True, min_tokens=LENGTH, return_token_ids=True)
        members["max_tokens"] = LENGTH
        answer = (reply := self._generate(**members)).answer()
        count = len(answer.ids) if answer.has_ids and answer.output_tokens is None else answer.output_tokens
        asked = f"{LENGTH} tokens of output"
        if answer.failure is not None or count is None:
            return self._probe("length", "unknown", asked, reply)
        if count > LENGTH:
            self.examination.too_long = (count, LENGTH)
        return Probe("length", "yes" if count == LENGTH else "no", f"{asked}: {count} came", reply.status)

    def cache_salt(self) -> Probe:
        """Whether it can be told whose prefixes may be found in its cache."""
        return self._known("cache_salt", "semtrace", {"no": "salt"})

    def logits_processor(self) -> Probe:
        """Whether it generates the ids in `vllm_xargs`."""
        members = self._not_refused(ignore_eos=True, return_token_ids=True)
        members |= {"vllm_xargs": {LOCK_ARGUMENT: self._forced}, "max_tokens": len(self._forced)}
        return self._locked("logits_processor", self._generate(**members))

    def trace_replay(self) -> Probe:
        """Whether it has vLLM's trace replay, and takes token ids with sampling parameters."""
        count = len(self._forced)
        value = {
            "model": self.examination.model,
            "token_ids": self._prompt,
            "sampling_params": {"max_tokens": count, "trace_decode_token_ids": self._forced},
        }
        return self._locked("trace_replay", self._ask(GENERATE, value))

    def _locked(self, name: str, reply: Reply) -> Probe:
        answer = reply.answer()
        if answer.failure is not None:
            found: Found = "no" if 400 <= reply.status < 500 and reply.status != 429 else "unknown"
            return self._probe(name, found, f"{len(self._forced)} ids to generate", reply)
        if not answer.has_ids:
            return Probe(name, "unknown", "it does not return the ids that it generated", reply.status)
        if answer.ids.tolist() == self._forced:
            return Probe(name, "yes", f"{len(self._forced)} ids to generate: they came", reply.status)
        return Probe(name, "no", "ids to generate: others came", reply.status)

    def annotation(self) -> Probe:
        """Whether it knows Dynamo's extension, through which its mocker is told whose output to give."""
        probe = self._known("nvext", {"annotations": [f"{ANNOTATION}:semtrace-doctor"]}, 5)
        return replace(probe, name="annotation")

    def request_id(self) -> Probe:
        """Whether it takes over the id of a request."""
        name = f"semtrace-doctor-{self._client.asked}"
        value = {"model": self.examination.model, "max_tokens": 1, "temperature": 0}
        if self.examination.can("chat") and not self.examination.can("token_prompts"):
            reply = self._ask(CHAT, {**value, "messages": MESSAGES}, name)
        else:
            reply = self._ask(COMPLETIONS, {**value, "prompt": self._prompt}, name)
        where = [
            each
            for each, text in (
                ("X-Request-Id", reply.fields.get(b"x-request-id", b"").decode("latin-1")),
                ("id", str(reply.members().get("id", ""))),
            )
            if name in text
        ]
        if where:
            return Probe("request_id", "yes", f"it came back in {' and '.join(where)}", reply.status)
        return self._probe("request_id", "no" if reply.status == 200 else "unknown", "X-Request-Id", reply)

    def tokenize(self) -> Probe:
        """Whether it tells the tokens of a text."""
        reply = self._ask("/tokenize", {"model": self.examination.model, "prompt": "one two three"})
        tokens = reply.members().get("tokens")
        found: Found = "yes" if isinstance(tokens, list) and tokens else "no" if reply.status else "unknown"
        return self._probe("tokenize", found, "POST /tokenize", reply)

    def embeddings(self) -> Probe:
        """Whether it embeds token ids."""
        reply = self._ask(EMBEDDINGS, {"model": self.examination.model, "input": self._prompt})
        found: Found = "yes" if has_embedding(reply.members()) else "no" if reply.status else "unknown"
        return self._probe("embeddings", found, "token ids", reply)

    def vocabulary(self) -> Probe:
        """How many token ids the model has: the lowest that is refused, by halving."""
        if not self.examination.can("token_prompts"):
            return Probe.left_out("vocabulary", "it takes no token ids")
        low, high = max(self._prompt), MOST_ID  # taken, refused
        reply = self._one_id(high)
        if reply.status not in (400, 422):
            return self._probe("vocabulary", "unknown", "a token id that no model has", reply)
        while high - low > 1:
            middle = min((low + high) // 2, 2 * low + 1024)  # vocabularies are small in this range
            reply = self._one_id(middle)
            if reply.status == 200:
                low = middle
            elif reply.status in (400, 422):
                high = middle
            else:
                return self._probe("vocabulary", "unknown", "a token id", reply)
        self.examination.vocabulary_size = high
        return Probe("vocabulary", "yes", f"id {low} is taken, id {high} is refused", reply.status)

    def _one_id(self, token: int) -> Reply:
        value = {"model": self.examination.model, "prompt": [self._prompt[0], token], "max_tokens": 1}
        return self._ask(COMPLETIONS, {**value, "temperature": 0})


PROBES: Final[dict[str, tuple[str, Callable[[Doctor], Probe]]]] = {
    "reachable": ("speaks HTTP", Doctor.reachable),
    "models": ("lists its models", Doctor.models),
    "token_prompts": ("takes prompts of token ids", Doctor.token_prompts),
    "chat": ("takes chat messages", Doctor.chat),
    "tools": ("takes chat messages that offer tools", Doctor.tools),
    "tools_uncalled": ("takes them with tool_choice none", Doctor.tools_uncalled),
    "stream": ("streams its answers", Doctor.stream),
    "stream_usage": ("counts tokens at the end of a stream", Doctor.stream_usage),
    "token_ids_back": ("returns the ids of generated tokens", Doctor.token_ids_back),
    "ignore_eos": ("goes on after an end token if told to", Doctor.ignore_eos),
    "min_tokens": ("takes a least number of output tokens", Doctor.min_tokens),
    "length": ("generates as many tokens as it is told to", Doctor.length),
    "cache_salt": ("takes a salt for its prefix cache", Doctor.cache_salt),
    "logits_processor": ("generates the ids in vllm_xargs", Doctor.logits_processor),
    "trace_replay": ("has vLLM's trace replay", Doctor.trace_replay),
    "annotation": ("knows Dynamo's annotations", Doctor.annotation),
    "request_id": ("takes over request ids", Doctor.request_id),
    "tokenize": ("tells the tokens of a text", Doctor.tokenize),
    "embeddings": ("embeds token ids", Doctor.embeddings),
    "vocabulary": ("refuses ids outside of its vocabulary", Doctor.vocabulary),
}
"""The probes, by name: what each finds out, and how. Their order is that of asking."""


_GENERATING: Final = frozenset({
    "stream", "stream_usage", "token_ids_back", "ignore_eos", "min_tokens", "length", "cache_salt", "logits_processor",
    "annotation", "request_id",
})  # fmt: skip
"""Probes that are generations."""


def _message(reply: Reply) -> str:
    """A server's error message, empty if it has none."""
    value = reply.value()
    if isinstance(value, dict):
        error = value.get("error", value)
        if isinstance(error, dict):
            for name in ("message", "detail"):
                if isinstance(text := error.get(name), str):
                    return text
        if isinstance(error, str):
            return error
    return ""
