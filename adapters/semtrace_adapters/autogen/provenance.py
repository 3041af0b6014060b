"""Where the text of a message came from: outputs of earlier operations, found again in later inputs.

In order of worth: the whole message equals an output, of the speaker that it names if it names one; an output is part
of the message, the longest first and each place once (an output inside of a longer one is no second source).
Outputs that are JSON are searched by the strings in them too: a ledger's instruction reaches an agent as plain text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.build import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHORTEST = 12
"""Characters that a part must have to be searched for: shorter ones are found by chance."""


@dataclass(frozen=True)
class Output:
    """A text that an operation returned, or a string inside of it.

    Attributes:
        operation: provisional id of the operation.
        text: the text.
        speaker: name of the agent whose it is.
        order: place in the log at which it was there.
        start: first byte of the text in the output, None if it does not stand there as it is.
    """

    operation: int
    text: str
    speaker: str
    order: float
    start: int | None


class Outputs:
    """All outputs of one task, to be searched."""

    def __init__(self) -> None:
        self._whole: dict[str, list[Output]] = {}
        self._parts: dict[str, list[Output]] = {}
        self._longest: list[str] | None = None

    def add(self, operation: int, text: str, speaker: str, order: float) -> None:
        """Add an operation's output as text, and the strings in it where it is JSON."""
        self._put(Output(operation, text, speaker, order, 0), whole=True)
        stripped = text.lstrip()
        if not stripped.startswith(("{", "[")):
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        for leaf in _strings(value):
            self.add_part(operation, leaf, speaker, order, text)

    def add_part(self, operation: int, part: str, speaker: str, order: float, raw: str) -> None:
        """Add a string that an output holds, with its place in the output's raw text if it stands there as it is."""
        at = raw.find(f'"{part}"')
        start = len(raw[: at + 1].encode()) if at >= 0 else None
        self._put(Output(operation, part, speaker, order, start), whole=False)

    def _put(self, output: Output, *, whole: bool) -> None:
        if whole and output.text:
            self._whole.setdefault(output.text, []).append(output)
        if len(output.text) >= SHORTEST:
            self._parts.setdefault(output.text, []).append(output)
            self._longest = None

    def equal(self, text: str, speaker: str | None, before: float) -> Output | None:
        """The latest output that is the whole text: of the named speaker, else, if it is no short one, of anybody."""
        there = [o for o in self._whole.get(text, []) if o.order <= before]
        own = [o for o in there if o.speaker == speaker]
        if own:
            return own[-1]
        return there[-1] if there and len(text) >= SHORTEST else None

    def spans(self, text: str, before: float, only: Iterable[int] | None = None) -> list[Span]:
        """The parts of a text that repeat outputs which were there at a place in the log.

        Args:
            text: the text.
            before: place in the log; outputs from after it do not count.
            only: the operations that count; all if left out.
        """
        allowed = None if only is None else set(only)
        if self._longest is None:
            self._longest = sorted(self._parts, key=len, reverse=True)
        rest = text
        found: list[Span] = []
        for part in self._longest:
            if len(part) > len(text) or part not in rest:
                continue
            there = [
                o
                for o in self._parts[part]
                if o.order <= before and (allowed is None or o.operation in allowed)
            ]
            if not there:
                continue
            output = there[-1]
            at = rest.find(part)
            while at >= 0:
                found.append(Span(at, at + len(part), output.operation, output.start))
                rest = rest[:at] + "\0" * len(part) + rest[at + len(part) :]
                at = rest.find(part, at + len(part))
        return sorted(found, key=lambda s: s.start)


def _strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value that are long enough to be searched for."""
    stack = [value]
    while stack:
        at = stack.pop()
        if isinstance(at, str):
            if len(at) >= SHORTEST:
                yield at
        elif isinstance(at, dict):
            stack.extend(reversed(list(at.values())))
        elif isinstance(at, list):
            stack.extend(reversed(at))
