"""What the generators read: the declared tables, and the enumerations with the meaning of each number."""

from __future__ import annotations

import argparse
import ast
import sys
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from semtrace.records import enums

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent


class Member(NamedTuple):
    """A number of an enumeration."""

    name: str
    number: int
    doc: str


class Enumeration(NamedTuple):
    """An enumeration of the standard."""

    name: str
    doc: str
    members: tuple[Member, ...]


def enumerations() -> list[Enumeration]:
    """The enumerations in the order of their module; the text below a member is its meaning."""
    source = Path(enums.__file__).read_text("utf-8")
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        kind = getattr(enums, node.name)
        if not issubclass(kind, IntEnum):
            raise SystemExit(f"{node.name} is no enumeration")
        docs: dict[str, str] = {}
        for member, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
                if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
                    raise SystemExit(f"{node.name}.{member.targets[0].id} has no text below it")
                docs[member.targets[0].id] = str(below.value.value)
        members = tuple(Member(member.name, int(member), docs[member.name]) for member in kind)
        found.append(Enumeration(node.name, ast.get_docstring(node) or "", members))
    return found


def write(files: Mapping[Path, str], description: str) -> None:
    """Write generated files, or, with --check, say which are not what would be written, and exit with 1."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a file is out of date"
    )
    check = parser.parse_args().check
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is {'out of date: run make proto' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], "utf-8")
    sys.exit(1 if check and stale else 0)
