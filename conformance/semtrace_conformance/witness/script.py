"""The script of a witness: what kind of server it is, how long answers take, and which faults it has on cue."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from semtrace_conformance.messages import Model

Nanoseconds = Annotated[int, Field(ge=0, lt=1 << 53)]
Tokens = Annotated[int, Field(ge=0, lt=1 << 32)]

BYTES: Final = 3
"""Id of the token that stands for byte 0 of a text; 256 of them follow one another."""


class Service(Model):
    """How long an answer takes.

    Attributes:
        first_token_ns: from the request's arrival to its first token, in ns; to the end, where there is none.
        prompt_token_ns: added to that for each token of the prompt, in ns.
        token_ns: from a token to the next, in ns.
        chunk: tokens in a chunk of a stream, the first chunk excepted, which has one.
    """

    first_token_ns: Nanoseconds = 2_000_000
    prompt_token_ns: Nanoseconds = 0
    token_ns: Nanoseconds = 200_000
    chunk: int = Field(default=1, ge=1)


class Status(Model):
    """It answers with another HTTP status, at once.

    Attributes:
        status: the status.
        retry_after_s: value of the header `Retry-After`, in s; no such header, if left out.
    """

    kind: Literal["status"]
    status: int = Field(ge=400, le=599)
    retry_after_s: int | None = Field(default=None, ge=0)


class Reset(Model):
    """It resets the connection.

    Attributes:
        after_tokens: after how many tokens of the stream; before it answers at all, if left out.
    """

    kind: Literal["reset"]
    after_tokens: Tokens | None = None


class Truncated(Model):
    """It ends the stream in order, without finish reason, usage and end mark.

    Attributes:
        after_tokens: after how many tokens.
        closes: whether it closes the connection instead of ending the body.
    """

    kind: Literal["truncated"]
    after_tokens: Tokens = 0
    closes: bool = False


class Hang(Model):
    """It says nothing any more, and keeps the connection.

    Attributes:
        after_tokens: after how many tokens of the stream; without any answer, if left out.
    """

    kind: Literal["hang"]
    after_tokens: Tokens | None = None


class Garbage(Model):
    """It answers with what is not HTTP (`head`), or with an event or a body that is not JSON (`body`)."""

    kind: Literal["garbage"]
    where: Literal["head", "body"] = "body"


class StreamError(Model):
    """It tells of an error in the stream, after some tokens, and ends it."""

    kind: Literal["error"]
    after_tokens: Tokens = 0


class WrongCount(Model):
    """It generates more tokens, or fewer, than it was asked for.

    Attributes:
        delta: how many more; negative for fewer.
    """

    kind: Literal["count"]
    delta: int = Field(ge=-1000, le=1000)


class WrongId(Model):
    """It generates another token at a position."""

    kind: Literal["ids"]
    position: Tokens = 0


class NoUsage(Model):
    """It does not tell how many tokens there were."""

    kind: Literal["no_usage"]


class EarlyEnd(Model):
    """It ends with its end-of-sequence token after some tokens, whatever it was asked for."""

    kind: Literal["eos"]
    after_tokens: int = Field(default=1, ge=1)


class Death(Model):
    """The server dies: it resets all its connections, and takes none for a while.

    Attributes:
        for_ns: how long, in ns.
    """

    kind: Literal["die"]
    for_ns: Nanoseconds


Fault = Annotated[
    Status
    | Reset
    | Truncated
    | Hang
    | Garbage
    | StreamError
    | WrongCount
    | WrongId
    | NoUsage
    | EarlyEnd
    | Death,
    Field(discriminator="kind"),
]


class Rule(Model):
    """What is special about some requests. Of the rules that fit a request, the first counts.

    Attributes:
        request: pattern of the ids of requests, as in `semtrace-0-*`; the number of a retry is not part of the id.
        attempts: which attempts of each of them, counted from 1; all, if left out.
        service: how long the answer takes, if not as for all others.
        fault: what goes wrong.
    """

    request: str = "*"
    attempts: list[int] | None = None
    service: Service | None = None
    fault: Fault | None = None

    def fits(self, request: str, attempt: int) -> bool:
        """Whether it is of an attempt of a request."""
        return (self.attempts is None or attempt in self.attempts) and fnmatchcase(request, self.request)


class Script(Model):
    """The script of a witness.

    Attributes:
        models: the models that it serves.
        context: most tokens of a prompt and its output together.
        vocabulary: how many token ids there are, from 0.
        eos: id of its end-of-sequence token.
        free: the ids from this one on are those that it generates freely, the others never are: so that output
            that was locked can be told from output that was not.
        eos_after: after how many tokens it ends by itself, where it is not told to go on; never, if left out.
        token_ids: whether it takes prompts of token ids, and returns the ids of outputs.
        token_lock: whether it generates the ids in `vllm_xargs.semtrace_output_ids`.
        length_lock: whether it knows `min_tokens` and `ignore_eos`; a server that does not refuses them.
        tokenize: whether it has `/tokenize`.
        usage: whether it tells how many tokens there were.
        refuse_connections: the connections that it resets when they are made, by ordinal from 1.
        service: how long answers take.
        rules: what is special about some requests.
    """

    format: Literal["semtrace-witness-script"] = "semtrace-witness-script"
    models: list[str] = Field(default=["witness"], min_length=1)
    context: int = Field(default=1 << 20, ge=1)
    vocabulary: int = Field(default=32_000, ge=1024, lt=1 << 32)
    eos: Tokens = 2
    free: Tokens = 16_000
    eos_after: int | None = Field(default=3, ge=1)
    token_ids: bool = True
    token_lock: bool = True
    length_lock: bool = True
    tokenize: bool = True
    usage: bool = True
    refuse_connections: list[int] = Field(default_factory=list)
    service: Service = Field(default_factory=Service)
    rules: list[Rule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _ids(self) -> Self:
        if not (self.eos < self.free and BYTES + 256 <= self.free < self.vocabulary):
            raise ValueError(f"free must be above eos and from {BYTES + 256} to vocabulary - 1")
        return self

    def rule(self, request: str, attempt: int) -> tuple[Service, Any]:
        """How long the answer to an attempt of a request takes, and what goes wrong with it, None if nothing does."""
        for rule in self.rules:
            if rule.fits(request, attempt):
                return rule.service or self.service, rule.fault
        return self.service, None
