"""The requirements of the standard, read from its pages.

A requirement is a paragraph that begins with its id in bold brackets, `**[ST-ORD-001]** …`, or an item of a list that
does. It ends with the paragraph or item.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Level = Literal["must", "should", "may", "definition"]

ID: Final = re.compile(r"ST-[A-Z]+-\d{3}")
_BEGIN: Final = re.compile(rf"^(?:[-*] +)?\*\*\[({ID.pattern})\]\*\* *(.*)$")
_EXCLUSION: Final = re.compile(rf"^\| *({ID.pattern}) *\| *(.+?) *\|$")
_EXAMPLE: Final = "```json example"
_EXCLUSIONS: Final = "exclusions.md"


@dataclass(frozen=True)
class Requirement:
    """A requirement.

    Attributes:
        id: `ST-AREA-NNN`.
        level: the strongest word in it: `must`, `should`, `may`, or `definition` if there is none.
        text: its text, on one line.
        file: name of the page.
        line: line of the page, from 1.
        has_example: whether an example that tests execute follows, a block that begins with ` ```json example `.
    """

    id: str
    level: Level
    text: str
    file: str
    line: int
    has_example: bool = False


def _level(text: str) -> Level:
    words: tuple[tuple[str, Level], ...] = (("MUST", "must"), ("SHOULD", "should"), ("MAY", "may"))
    for word, level in words:
        if re.search(rf"\b{word}\b", text):
            return level
    return "definition"


def read_page(name: str, content: str) -> Iterator[Requirement]:
    """The requirements of one page, in order.

    Args:
        name: name of the page.
        content: its Markdown.
    """
    lines = content.splitlines()
    begins = [(at, begin) for at, line in enumerate(lines) if (begin := _BEGIN.match(line))]
    ends = [*(at for at, _ in begins[1:]), len(lines)]
    for (at, begin), end in zip(begins, ends, strict=bool(begins)):  # a page may have none
        parts = [begin[2]]
        for following in lines[at + 1 :]:
            if not following.strip() or _BEGIN.match(following):
                break
            parts.append(following.strip())
        text = " ".join(part for part in parts if part)
        has_example = any(line == _EXAMPLE for line in lines[at:end])
        yield Requirement(begin[1], _level(text), text, name, at + 1, has_example)


def read_requirements(spec: Path) -> list[Requirement]:
    """All requirements of the pages in a folder, by page and place.

    Args:
        spec: the folder with the pages of the standard.
    """
    return [
        requirement
        for page in sorted(spec.glob("*.md"))
        if page.name != _EXCLUSIONS
        for requirement in read_page(page.name, page.read_text("utf-8"))
    ]


def read_exclusions(spec: Path) -> dict[str, str]:
    """The requirements that nothing checks, each with the reason.

    Args:
        spec: the folder with the pages of the standard.
    """
    found = {}
    for line in (spec / _EXCLUSIONS).read_text("utf-8").splitlines():
        row = _EXCLUSION.match(line)
        if row:
            found[row[1]] = row[2]
    return found


def cited(source: str) -> set[str]:
    """The ids that a source text cites."""
    return set(ID.findall(source))
