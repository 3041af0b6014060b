"""Where the text of a request repeats what other operations made.

Earlier texts are looked for as wholes, the longest first, and what is found is masked; texts under twelve signs say
nothing. JSON is taken apart first: a later prompt often holds one member of it, or one document that a message
carried.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semtrace.build import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST: Final = 12
_DEEPEST: Final = 6


@dataclass(frozen=True)
class Text:
    """A text that an operation made; `output` is its whole output, where it is known."""

    text: str
    source: int
    output: str | None


def leaves(text: str) -> list[str]:
    """The text, and where it is JSON, the strings in it, taken apart in their turn."""
    found: dict[str, None] = {}
    stack: list[tuple[object, int]] = [(text, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str):
            if len(value) >= LEAST:
                found[value] = None
            if depth < _DEEPEST and value[:1] in {"{", "["}:
                try:
                    stack.append((json.loads(value), depth + 1))
                except (ValueError, RecursionError):
                    continue
        elif isinstance(value, dict):
            stack.extend((each, depth) for each in value.values())
        elif isinstance(value, list):
            stack.extend((each, depth) for each in value)
    return list(found)


def spans_in(content: str, texts: Iterable[Text]) -> list[tuple[Span, Text]]:
    """The parts of a text that repeat others, apart from each other, in order.

    Of equal texts of one source the last counts.
    """
    taken: list[tuple[int, int]] = []
    spans: list[tuple[Span, Text]] = []
    for text in sorted(
        {(t.text, t.source): t for t in texts}.values(), key=lambda t: (-len(t.text), t.source)
    ):
        start = content.find(text.text)
        while start >= 0:
            end = start + len(text.text)
            if all(end <= other_start or start >= other_end for other_start, other_end in taken):
                taken.append((start, end))
                spans.append((Span(start, end, text.source, _offset(text)), text))
            start = content.find(text.text, end)
    return sorted(spans, key=lambda found: found[0].start)


def _offset(text: Text) -> int | None:
    """First byte of the text in the source's output, None where the output does not hold it as it is."""
    if text.output is None:
        return None
    at = text.output.find(text.text)
    return None if at < 0 else len(text.output[:at].encode())


def texts_of(content: str, source: int, output: str | None) -> Sequence[Text]:
    """What to look for, of a text that an operation made."""
    return [Text(each, source, output) for each in leaves(content)]
