"""The messages between harness and testee (protocol.md), strictly: a member that is not defined is an error."""

from __future__ import annotations

import json
from math import isfinite
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

PROTOCOL: Final = 1
"""The version of the protocol that this harness speaks."""
ANSWER_LIMIT: Final = 4 << 20
"""Longest line that a testee may write, in bytes, the newline left out."""
DEPTH_LIMIT: Final = 64
"""How deep the values in a line may be nested."""
TEXT_LIMIT: Final = 10_000
"""Longest free text in an answer, in characters."""

Phase = Literal["malformed", "unsupported", "integrity", "invalid", "unreplayable"]
"""Where a refusal happened, in the order in which an input is looked at."""

Text = Annotated[str, Field(max_length=TEXT_LIMIT)]


class Model(BaseModel):
    """Base of messages and of the suite's own files: strict, immutable, without members that are not defined."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Start(Model):
    """Harness to testee, first: what is on offer."""

    type: Literal["start"]
    protocols: list[int]
    specs: list[str]
    profiles: dict[str, list[str]]


class Testee(Model):
    """Who answers."""

    name: Text
    version: Text
    language: Text | None = None


class Started(Model):
    """Testee to harness: what it chose, and which profiles and features it claims."""

    type: Literal["started"]
    protocol: int
    spec: str
    testee: Testee
    profiles: dict[str, list[str]]


class Mismatch(Model):
    """Testee to harness: nothing on offer is known here."""

    type: Literal["mismatch"]
    message: Text


class Run(Model):
    """Harness to testee: one case. Which case it is, and what is expected, is not said."""

    type: Literal["run"]
    id: str
    profile: str
    kind: str
    inputs: dict[str, str]
    output: str | None = None
    ask: dict[str, Any] = Field(default_factory=dict)


class Accepted(Model):
    """Testee to harness: the input is right, and these are the facts asked for."""

    type: Literal["answer"]
    id: str
    verdict: Literal["accept"]
    facts: dict[str, Any]


class Rejected(Model):
    """Testee to harness: the input is refused, in this phase, by this requirement."""

    type: Literal["answer"]
    id: str
    verdict: Literal["reject"]
    phase: Phase
    requirement: str = Field(pattern=r"^ST-[A-Z]+-[0-9]{3}$")
    message: Text | None = None
    facts: dict[str, Any] = Field(default_factory=dict)


class Failed(Model):
    """Testee to harness: the testee could not do it, through a fault of its own. Never counts as a refusal."""

    type: Literal["answer"]
    id: str
    verdict: Literal["error"]
    message: Text


class Stop(Model):
    """Harness to testee, last: end with exit status 0."""

    type: Literal["stop"]


Answer = Annotated[Accepted | Rejected | Failed, Field(discriminator="verdict")]
Greeting = Annotated[Started | Mismatch, Field(discriminator="type")]

ANSWER: Final[TypeAdapter[Accepted | Rejected | Failed]] = TypeAdapter(Answer)
GREETING: Final[TypeAdapter[Started | Mismatch]] = TypeAdapter(Greeting)


class BadMessageError(Exception):
    """A line from a testee that is not the message that it must be; the text says why."""


def encode(message: Model) -> bytes:
    """A message as one line."""
    return json.dumps(message.model_dump(exclude_none=True), ensure_ascii=False).encode() + b"\n"


def parse_json(line: bytes) -> Any:
    """The values that a line spells.

    Raises:
        BadMessageError: it is not JSON as RFC 8259 and UTF-8 have it, or an object has a member twice.
    """
    try:
        value = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8 form
        _check_values(value)
    except RecursionError as error:
        raise BadMessageError(f"not JSON: nested more than {DEPTH_LIMIT} deep") from error
    except ValueError as error:
        raise BadMessageError(f"not JSON: {error}") from error
    return value


def _check_values(value: object) -> None:
    """Refuse numbers that no double holds, and values nested too deeply for what is done with them later."""
    pending = [(value, 0)]
    while pending:
        each, depth = pending.pop()
        if depth > DEPTH_LIMIT:
            raise ValueError(f"nested more than {DEPTH_LIMIT} deep")
        if isinstance(each, float) and not isfinite(each):
            raise ValueError("a number that is too large")
        children = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        pending.extend((child, depth + 1) for child in children)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a member stands twice in one object")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_answer(line: bytes, wanted: str) -> Accepted | Rejected | Failed:
    """The answer in a line.

    Args:
        line: the line.
        wanted: the id that it must have.

    Raises:
        BadMessageError: it is none, or the answer to something else.
    """
    answer = _validated(ANSWER, _said(line))
    if answer.id != wanted:
        raise BadMessageError(f"an answer to {answer.id!r}, asked was {wanted!r}")
    return answer


def parse_greeting(line: bytes) -> Started | Mismatch:
    """The answer to `start` in a line.

    Raises:
        BadMessageError: it is none.
    """
    return _validated(GREETING, _said(line))


def _said(line: bytes) -> Any:
    """What a line of a testee spells; one that is none is shown."""
    try:
        return parse_json(line)
    except BadMessageError as error:
        raise BadMessageError(f"{error}; it begins {line[:60].decode(errors='replace')!a}") from error


T = TypeVar("T")


def _validated(adapter: TypeAdapter[T], value: object) -> T:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise BadMessageError(explain(error)) from error


def explain(error: ValidationError) -> str:
    """What a validation found, each with its place, in one line; five at most."""
    parts = [
        f"{'.'.join(map(str, detail['loc'])) or 'message'}: {detail['msg']}"
        for detail in error.errors(include_url=False)
    ]
    more = f"; and {len(parts) - 5} more" if len(parts) > 5 else ""
    return "; ".join(parts[:5]) + more
