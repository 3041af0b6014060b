"""What is wrong with a document, in words of those who write documents."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

_MAPPING: Final = frozenset({"model_type", "model_attributes_type", "dict_type", "dataclass_type"})
_WANTED: Final = {
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "finite_number": "a finite number",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_LENGTHS: Final = {
    "too_short": ("at least", "min_length", "element"),
    "too_long": ("at most", "max_length", "element"),
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
}


def explain(details: Sequence[ErrorDetails], value: object, at: str | None = None) -> str:
    """What is wrong, each place once: of a choice, what the form that was written lacks, else all that there may be.

    Args:
        details: what the validation of the document found.
        value: the document's values.
        at: the member that it is of another document, if it is a part of one.
    """
    if value is None:
        return f"{at}: is empty" if at else "is empty"
    by_place: dict[tuple[Any, ...], list[ErrorDetails]] = {}
    for detail in details:
        by_place.setdefault(_place(detail, value), []).append(detail)
    lines = []
    for place, found in by_place.items():
        deeper = any(len(other) > len(place) and other[: len(place)] == place for other in by_place)
        if deeper and isinstance(found[0]["input"], dict):
            continue  # another form of what stands there fits, but for what is said of its members
        where = ".".join(map(str, (at, *place) if at else place))
        said = _together(found)
        lines.append(f"{where}: {said}" if where else said)
    return "; ".join(lines)


def unknown_keys(document: type[BaseModel], keys: Iterable[str]) -> str:
    """That a document does not have some keys, with what may have been meant; of many, that it is another document."""
    keys = list(keys)
    if len(keys) > 3:
        return f"unknown keys {', '.join(map(repr, keys[:8]))}{', …' if len(keys) > 8 else ''}: another kind of document?"
    lines = []
    for key in keys:
        inner = [
            f"{name}.{key}"
            for name, field in document.model_fields.items()
            for model in _models(field.annotation)
            if key in model.model_fields
        ]
        near = inner or difflib.get_close_matches(key, document.model_fields, n=1, cutoff=0.5)
        keys_are = (
            f"the keys are {', '.join(document.model_fields)}" if document.model_fields else "there are none"
        )
        known = f"did you mean {near[0]!r}?" if near else keys_are
        lines.append(f"unknown key {key!r}, {known}")
    return "; ".join(lines)


def _models(annotation: object) -> list[type[BaseModel]]:
    """The kinds of document in a type that are not part of a list."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    origin = getattr(annotation, "__origin__", None)
    if origin in (list, dict, tuple):
        return []
    return [model for part in get_args(annotation) for model in _models(part)]


def _place(detail: ErrorDetails, value: object) -> tuple[Any, ...]:
    """Where something is wrong, without the names of forms of which one may stand there."""
    made: list[Any] = []
    at = value
    for part in detail["loc"]:
        if isinstance(at, dict) and (
            part in at or (detail["type"] == "missing" and part == detail["loc"][-1])
        ):
            at = at.get(part)
        elif isinstance(at, list) and isinstance(part, int) and part < len(at):
            at = at[part]
        else:
            continue
        made.append(part)
    return tuple(made)


def _together(found: Sequence[ErrorDetails]) -> str:
    """What is wrong in one place: what it may be, and what it is."""
    wanted = list(dict.fromkeys(filter(None, map(_wanted, found))))
    other = [_other(detail) for detail in found if _wanted(detail) is None]
    if not wanted:
        return "; ".join(dict.fromkeys(other))
    given = found[0]["input"]
    near = [close for detail in found for close in _near(detail)]
    return f"must be {' or '.join(wanted)}, and is {_shown(given)}" + (
        f"; did you mean {near[0]!r}?" if near else ""
    )


def _wanted(detail: ErrorDetails) -> str | None:
    """What was wanted where something of another kind stands; None for other errors."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _MAPPING:
        return "a mapping of keys to values"
    if kind == "literal_error":
        return str(context["expected"])
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"{words} {context[name]}"
    return _WANTED.get(kind)


def _near(detail: ErrorDetails) -> list[str]:
    given = detail["input"]
    if detail["type"] != "literal_error" or not isinstance(given, str):
        return []
    return difflib.get_close_matches(given, _quoted(str(detail["ctx"]["expected"])), n=1)


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _other(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "union_tag_not_found":
        return f"needs a key {context['discriminator']}"
    if kind == "union_tag_invalid":
        tags, tag = str(context["expected_tags"]), str(context["tag"])
        near = difflib.get_close_matches(tag, _quoted(tags), n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return f"{_unquoted(context['discriminator'])} must be one of {tags}, and is {tag[:60]!r}{meant}"
    if kind in _LENGTHS:
        words, name, what = _LENGTHS[kind]
        count = context[name]
        return f"must have {words} {count} {what}{'' if count == 1 else 's'}"
    return detail["msg"].removeprefix("Value error, ")


def _unquoted(text: object) -> str:
    return str(text).strip("'")


def _shown(value: object) -> str:
    """What stands there, in few words."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}…")
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else str(value)[:60]


def other_format(document: type[BaseModel], value: Mapping[str, Any]) -> str | None:
    """That values are a document of another kind, by what they say of themselves; None if they are not."""
    field = document.model_fields.get("format")
    said = value.get("format")
    if (
        field is None
        or not isinstance(said, str)
        or not isinstance(field.default, str)
        or said == field.default
    ):
        return None
    return f"is of the format {said[:60]!r}, where {field.default!r} is wanted"
