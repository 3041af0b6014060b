"""YAML as documents may be written in it: with what JSON has too, and nothing else (ST-DOC-003)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NoReturn

import yaml

from semtrace.records.document import NotAllowedError, integer_of

YAML_DEPTH = 100
"""Deepest nesting of a document read as YAML."""

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TAGS = tuple(_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))
"""What JSON has too. A date is text here, and `<<` a key like others."""


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
        made: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(made) != len(node.value):
            raise NotAllowedError(f"a key stands twice in one mapping{node.start_mark}")
        return made

    def number(self, node: yaml.ScalarNode) -> int | float:
        """An integer of 64 bits, or a finite double."""
        if len(node.value) > 64:
            raise NotAllowedError(f"{node.value[:20]}… is no number of 64 bits{node.start_mark}")
        if node.tag == _TAG + "int":
            value: int = self.construct_yaml_int(node)
            return integer_of(str(value))
        number: float = self.construct_yaml_float(node)
        if not math.isfinite(number):
            raise NotAllowedError(f"{node.value} is not JSON{node.start_mark}")
        return number

    def refuse(self, node: yaml.Node) -> NoReturn:
        """No tag but JSON's."""
        raise NotAllowedError(f"the tag {node.tag} is not allowed{node.start_mark}")


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
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _look_through(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_BaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise NotAllowedError("aliases are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > YAML_DEPTH:
                raise NotAllowedError(f"is nested more than {YAML_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
