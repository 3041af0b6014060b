"""Documents: small structured texts that a person writes or reads, as YAML or JSON.

A document refuses keys that it does not have, naming the nearest one that it has; keys with a namespace
(`example.org/key`) are extensions, which are kept and mean nothing here (ST-DOC-001, ST-DOC-002).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Final, NoReturn, Self

import rfc8785
from blake3 import blake3
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
)
from pydantic_core import PydanticCustomError, PydanticSerializationError

from semtrace.errors import DocumentError, FormatError, UsageError
from semtrace.records.document_words import explain, other_format, unknown_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DOCUMENT_LIMIT = 24 * 1024 * 1024
"""Largest document read, in bytes."""
VALUE_LIMIT = 3_000_000
"""Most values in a document read as JSON, members of objects and elements of arrays; see `has_too_many_values`."""
YAML_LIMIT = 1024 * 1024
"""Largest document read as YAML, in bytes: reading YAML takes a hundred times the time of reading JSON."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STORED: Final = "stored"
"""The context in which values are those of a stored document: in a program an integer is one."""

_DIGITS = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DECIMAL_ERROR: Final = "decimal"


def _from_digits(value: object, info: ValidationInfo) -> object:
    if info.context == _STORED and not (isinstance(value, str) and _DIGITS.fullmatch(value)):
        raise PydanticCustomError(_DECIMAL_ERROR, "must be a text of decimal digits")
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


Int64 = Annotated[
    int,
    BeforeValidator(_from_digits),
    Field(ge=-(1 << 63), lt=1 << 63),
    PlainSerializer(str, str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^({_DIGITS.pattern})$"}),
]
"""An integer that may be 2^53 or more, which canonical JSON does not have: written as a string (ST-DOC-004)."""

_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise PydanticCustomError(_DIGEST_ERROR, "must be `blake3:` and 64 lower-case hexadecimal digits")
    return text


_DIGEST_ERROR: Final = "digest"
Digest = Annotated[str, AfterValidator(_digest), Field(json_schema_extra={"pattern": f"^{_DIGEST.pattern}$"})]
"""A digest, as documents have it (ST-DIG-021)."""

_REQUIREMENT: Final = {_DIGEST_ERROR: "ST-DIG-021", _DECIMAL_ERROR: "ST-DOC-004"}
"""By kind of error, the requirement that says more than ST-DOC-001."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")

NAMESPACED: Final = re.compile(r"[^/]+/[\s\S]+")
"""What an extension's key looks like."""


def canonical_json(value: object) -> bytes:
    """The RFC 8785 form of a JSON value.

    Raises:
        FormatError: the value has no canonical form (an integer of 2^53 or more, a NaN, a lone surrogate).
    """
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]  # its JSON type is recursive, ours is object
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise FormatError(
            f"no canonical JSON form: {error}",
            code="document.canonical",
            hint="write integers of 2^53 and more as strings",
        ) from error


def parse_canonical(text: str | bytes) -> Any:
    """The values that canonical JSON spells.

    Digits of 2^53 and more spell a double, as RFC 8785 has no such integers: the value's canonical form is the text.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=_integer_or_double, parse_constant=_no_constant)


def parse_json(text: str) -> Any:
    """The values that JSON from strangers spells, as `parse_canonical` has them.

    Raises:
        ValueError: it is not JSON as RFC 7493 has it: with a member twice in an object, `NaN` or a lone surrogate.
        RecursionError: it is nested too deeply.
    """
    value = json.loads(
        text, parse_int=_integer_or_double, object_pairs_hook=_once, parse_constant=_no_constant
    )
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # a lone one has no UTF-8 form
    return value


def has_too_many_values(raw: bytes) -> bool:
    """Whether JSON has more values than `VALUE_LIMIT`, found before any is made (ST-DOC-005).

    Counted are commas outside of strings, one for each value, and by what they take in memory four times each string and
    each opening bracket: a plan may speak of some million operations, but not in a million objects.
    """
    brackets = (b"[", b"{")
    if raw.count(b",") + 4 * (raw.count(b'"') + sum(map(raw.count, brackets))) <= VALUE_LIMIT:
        return False
    found = at = 0
    for string in _STRING.finditer(raw):
        found += 4 + raw.count(b",", at, string.start())
        found += 4 * sum(raw.count(each, at, string.start()) for each in brackets)
        at = string.end()
        if found > VALUE_LIMIT:
            return True
    found += raw.count(b",", at) + 4 * sum(raw.count(each, at) for each in brackets)
    return found > VALUE_LIMIT


def _integer_or_double(digits: str) -> int | float:
    value = int(digits)
    return value if abs(value) < 1 << 53 else float(digits)


def empty_list() -> list[Any]:
    """The default of a field that lists: pydantic reads what `list` itself takes out of its documentation, with a parser."""
    return []


def empty_dict() -> dict[str, Any]:
    """The default of a field of members; see `empty_list`."""
    return {}


class Document(BaseModel):
    """Base of all documents: strict keys and types, immutable."""

    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, validate_default=False, ser_json_inf_nan="strings"
    )

    HINT: ClassVar[str | None] = None
    """What to tell those whose document is wrong: an example, or the command that makes one."""

    @classmethod
    def _has(cls, key: str) -> bool:
        return key in cls.model_fields or NAMESPACED.fullmatch(key) is not None

    def model_post_init(self, _context: object, /) -> None:
        """Refuse keys without a namespace that the document does not have."""
        unknown = [key for key in self.model_extra or {} if not self._has(key)]
        if unknown:
            raise ValueError(unknown_keys(type(self), unknown))

    @model_serializer(mode="wrap")
    def _without_null_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {key: value for key, value in handler(self).items() if value is not None or key not in fields}

    def as_json(self) -> dict[str, Any]:
        """The document as JSON values; fields that are absent or null are left out.

        Raises:
            FormatError: a value in it is not a JSON value.
        """
        try:
            return self.model_dump(mode="json")
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise FormatError(f"no JSON form: {error}", code="document.canonical") from error

    def canonical(self) -> bytes:
        """The document's canonical bytes (RFC 8785)."""
        return canonical_json(self.as_json())

    def content_digest(self) -> str:
        """Digest of the canonical bytes, `blake3:` and 64 hex digits."""
        return f"blake3:{blake3(self.canonical()).hexdigest()}"

    @classmethod
    def parse(cls, value: object, *, path: str, at: str | None = None) -> Self:
        """Make the document of JSON values.

        Args:
            value: the values.
            path: what to call the document in errors.
            at: of a part of a document, the member that it is (`policy.settings`): errors name it before what is wrong in it.

        Raises:
            DocumentError: naming every field that is wrong, with its position.
        """
        try:
            return cls.model_validate(value, context=_STORED)
        except ValidationError as error:
            details = error.errors(include_url=False)
            kinds = {detail["type"] for detail in details}
            message = explain(details, value, at)
            if isinstance(value, dict):
                unknown = [key for key in map(str, value) if not cls._has(key)]
                if unknown and "unknown key" not in message:
                    of_part = f"{at}: " if at else ""
                    message = f"{of_part}{unknown_keys(cls, unknown)}; {message}"
                message = other_format(cls, value) or message
            raise DocumentError(
                message,
                code="document.invalid",
                path=path,
                requirement=_REQUIREMENT.get(kinds.pop(), "ST-DOC-001") if len(kinds) == 1 else "ST-DOC-001",
                hint=cls.HINT,
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the document from a YAML or JSON file.

        Raises:
            UsageError: there is no such file, or it cannot be read.
            DocumentError: it is not YAML or JSON, or not this document.
        """
        return cls.parse(read_values(path), path=str(path))


def read_values(path: Path) -> object:
    """The values in a YAML or JSON file.

    Raises:
        UsageError: there is no such file, or it cannot be read, or it is no regular file.
        DocumentError: it is neither, is too large, or has a key twice or anything else that a document must not have.
    """
    is_json = path.suffix.lower() == ".json"
    limit = DOCUMENT_LIMIT if is_json else YAML_LIMIT
    raw = read_regular(path, limit + 1)
    if len(raw) > limit:
        raise DocumentError(
            f"larger than {limit} bytes",
            code="document.size",
            path=str(path),
            requirement="ST-DOC-005",
            hint=None if is_json else "write it as JSON, in a file with the suffix .json",
        )
    if is_json and has_too_many_values(raw):
        raise DocumentError(
            f"more than {VALUE_LIMIT} values",
            code="document.size",
            path=str(path),
            requirement="ST-DOC-005",
            hint="a document is what a person could have written: bulk data belongs in tables",
        )
    try:
        text = raw.decode("utf-8-sig" if not is_json else "utf-8")
    except UnicodeDecodeError as error:
        zipped = raw.startswith(b"PK")
        raise DocumentError(
            "a ZIP file, perhaps a bundle, where a document is wanted"
            if zipped
            else f"not UTF-8 text, from byte {error.start} on",
            code="document.encoding",
            path=str(path),
            hint="YAML, or JSON with the suffix .json",
        ) from error
    try:
        if not text.strip():
            return None
        if is_json:
            return json.loads(
                text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=integer_of
            )
        from semtrace.records.yaml_values import read_yaml

        return read_yaml(text)
    except NotAllowedError as error:
        raise DocumentError(
            " ".join(str(error).split()),
            code="document.syntax",
            path=str(path),
            requirement="ST-DOC-003",
            hint=error.hint,
        ) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(
            f"{'not' if is_json else 'neither YAML nor'} JSON: {' '.join(str(error).split())}",
            code="document.syntax",
            path=str(path),
            hint="a file of YAML has a name that ends in .yaml" if is_json else None,
        ) from error


def read_regular(path: Path, most: int) -> bytes:
    """The first bytes of a regular file; nothing that could go on for ever, or wait for a writer.

    Args:
        path: the file.
        most: how many bytes at most.

    Raises:
        UsageError: there is no such file, or it cannot be read, or it is a directory, a device or a FIFO.
    """
    try:
        with open_regular(path) as file:
            return file.read(most)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            code="file.unreadable",
            path=str(path),
        ) from error


def open_regular(path: Path, *, buffering: int = 1 << 16) -> BinaryIO:
    """A regular file, open to be read; a FIFO is not waited for.

    Args:
        path: the file.
        buffering: how many bytes are read ahead.

    Raises:
        OSError, ValueError: there is no such file, or it cannot be read, or it is a directory.
        UsageError: it is a device, a FIFO or a socket.
    """
    file = open(path, "rb", buffering=buffering, opener=_open_at_once)  # noqa: SIM115  # the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError("is no regular file", code="file.special", path=str(path))
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO without a writer would block


class NotAllowedError(ValueError):
    """YAML or JSON, but with something that a document must not have (ST-DOC-003).

    Attributes:
        hint: what to do about it, if anything is known.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise NotAllowedError(
            f"the key {twice[:40]!r} stands twice in one object", hint="leave one of them out"
        )
    return made


def _no_constant(name: str) -> NoReturn:
    raise NotAllowedError(f"{name} is not JSON", hint="JSON has finite numbers only: leave the key out")


def integer_of(digits: str) -> int:
    """The integer that digits spell, of 64 bits at most.

    Raises:
        NotAllowedError: it has more.
    """
    value = int(digits) if len(digits) <= 20 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise NotAllowedError(f"{digits[:20]}… is an integer of more than 64 bits")
    return value


def with_changes(values: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """The values of a document with some of them changed.

    Args:
        values: the values.
        changes: new values by dotted key (`scheduler.max_num_seqs`).

    Raises:
        UsageError: a dotted key leads through something that has no members.
    """
    made = dict(values)
    for key, value in changes.items():
        *outer, last = key.split(".")
        place = made
        for part in outer:
            inner = place.get(part, {})
            if not isinstance(inner, dict):
                raise UsageError(
                    f"--set {key}: {part} is {str(inner)[:40]!r}, which has no members here",
                    code="document.set",
                    hint=f"give {part} written out in a file, or another {part} by name",
                )
            place[part] = place = dict(inner)
        place[last] = value
    return made
