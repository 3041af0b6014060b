"""Where the text of a request repeats what other operations made.

Earlier texts are looked for as wholes, the longest first, and what is found is masked; texts under twelve signs say
nothing. JSON is taken apart first: a later prompt often holds one member of it, or one document that a message
carried.
"""

from __future__ import annotations

import json
from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semtrace.build import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LEAST: Final = 12
_HEADS: Final = (LEAST, 40, 160)
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


class TextIndex:
    """Texts to look for, by their beginning: looking costs as much as what is looked through is long."""

    def __init__(self, texts: Iterable[Text] = ()) -> None:
        # Many texts begin alike (the same form, the same first words): a longer text is filed under more of it.
        self._by_head: dict[int, dict[str, list[Text]]] = {}
        for text in texts:
            self.add(text)

    def add(self, text: Text) -> None:
        """Look for this text, too."""
        length = max((each for each in _HEADS if len(text.text) >= each), default=None)
        if length is not None:
            self._by_head.setdefault(length, {}).setdefault(text.text[:length], []).append(text)

    def find(self, content: str) -> Iterator[tuple[int, Text]]:
        """Where the content holds a text: its first character, the text."""
        for length, texts in self._by_head.items():
            for at in range(len(content) - length + 1):
                for text in texts.get(content[at : at + length], ()):
                    if content.startswith(text.text, at):
                        yield at, text


def spans_in(content: str, *indexes: TextIndex) -> list[tuple[Span, Text]]:
    """The parts of a text that repeat others, the longest first, apart from each other; given in order.

    Of equal texts the one of the earliest operation counts; of equal ones of one operation, that of the last index.
    """
    found = [(at, place, text) for place, index in enumerate(indexes) for at, text in index.find(content)]
    found.sort(key=lambda each: (-len(each[2].text), each[2].source, each[0], -each[1]))
    starts: list[int] = []
    chosen: list[tuple[int, int, Text]] = []
    for start, _, text in found:
        end = start + len(text.text)
        place = bisect(starts, start)
        before_ok = place == 0 or chosen[place - 1][1] <= start
        after_ok = place == len(chosen) or end <= chosen[place][0]
        if before_ok and after_ok:
            starts.insert(place, start)
            chosen.insert(place, (start, end, text))
    return [(Span(start, end, text.source, _offset(text)), text) for start, end, text in chosen]


def _offset(text: Text) -> int | None:
    """First byte of the text in the source's output, None where the output does not hold it as it is."""
    if text.output is None:
        return None
    at = text.output.find(text.text)
    return None if at < 0 else len(text.output[:at].encode())


def texts_of(content: str, source: int, output: str | None) -> Sequence[Text]:
    """What to look for, of a text that an operation made."""
    return [Text(each, source, output) for each in leaves(content)]
