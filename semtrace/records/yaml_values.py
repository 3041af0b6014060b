"""YAML as documents may be written in it: with what JSON has too, and nothing else (ST-DOC-003)."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, ClassVar, Final, NoReturn

import yaml

from semtrace.records.document import NotAllowedError, integer_of

YAML_DEPTH = 100
"""Deepest nesting of a document read as YAML."""

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TAGS = tuple(_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))
"""What JSON has too. A date is text here, and `<<` a key like others."""
_OF_OLD: Final = re.compile(r"[-+]?(?:0[0-7_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")
"""Numbers of YAML 1.1 that are others, or text, for a person and in YAML 1.2: octal `017`, and `1:30` of base 60 (ST-DOC-007)."""


class _Loader(_BaseLoader):  # type: ignore[misc]  # a class of Any
    """The safe loader, refusing a key twice and values that JSON does not have."""

    yaml_constructors: ClassVar = {
        tag: made for tag, made in _BaseLoader.yaml_constructors.items() if tag in _TAGS
    }
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in pairs if tag in _TAGS]
        for first, pairs in _BaseLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:  # the loader's own signature
        for key, _ in node.value:
            if key.tag == _TAG + "bool":  # `on` and `no` too are truth values of YAML 1.1, and keys are texts
                key.tag = _TAG + "str"
        made: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(made) != len(node.value):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            twice = [str(key)[:40] for key, count in keys.items() if count > 1]
            raise NotAllowedError(
                f"{_place(node.start_mark)}: {f'the key {twice[0]!r}' if twice else 'a key'} stands twice in one mapping",
                hint="leave one of them out",
            )
        return made

    def number(self, node: yaml.ScalarNode) -> int | float:
        """An integer of 64 bits, or a finite double."""
        where, text = _place(node.start_mark), node.value
        if len(text) > 64:
            raise NotAllowedError(f"{where}: {text[:20]}… is no number of 64 bits", hint=_QUOTE)
        if _OF_OLD.fullmatch(text):
            read = (
                self.construct_yaml_int(node) if node.tag == _TAG + "int" else self.construct_yaml_float(node)
            )
            raise NotAllowedError(
                f"{where}: {text} is read as {read} by some and as it stands by others",
                hint=f"write the number that is meant in decimal digits, or quote a text: '{text}'",
            )
        if node.tag == _TAG + "int":
            value: int = self.construct_yaml_int(node)
            try:
                return integer_of(str(value))
            except NotAllowedError as error:
                raise NotAllowedError(f"{where}: {error}", hint=_QUOTE) from error
        number: float = self.construct_yaml_float(node)
        if not math.isfinite(number):
            raise NotAllowedError(
                f"{where}: {text} is not JSON, which has finite numbers only",
                hint=f"leave the key out, or quote a text: '{text}'",
            )
        return number

    def refuse(self, node: yaml.Node) -> NoReturn:
        """No tag but JSON's."""
        raise NotAllowedError(
            f"{_place(node.start_mark)}: the tag {node.tag[:60]} is not allowed",
            hint="leave the tag out: texts, numbers, true, false, null, lists and mappings need none",
        )


_QUOTE: Final = "quote it, if it is a text"


def _place(mark: Any) -> str:
    """Where something begins, as people count."""
    return f"line {mark.line + 1}, column {mark.column + 1}"


_Loader.add_constructor(_TAG + "int", _Loader.number)
_Loader.add_constructor(_TAG + "float", _Loader.number)
_Loader.add_constructor(None, _Loader.refuse)


def read_yaml(text: str) -> object:
    """The values in YAML, after a look at its events: aliases multiply, and nesting fills the stack.

    Raises:
        NotAllowedError: there is something in it that a document must not have.
        ValueError: it is not YAML.
    """
    try:
        _look_through(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = "; ".join(filter(None, (error.context, error.problem)))
        raise ValueError(said if mark is None else f"{_place(mark)}: {said}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _look_through(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_BaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise NotAllowedError(
                f"{_place(event.start_mark)}: aliases are not allowed",
                hint=f"write out what *{event.anchor} stands for",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > YAML_DEPTH:
                raise NotAllowedError(f"{_place(event.start_mark)}: is nested more than {YAML_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
