"""Looking at a bundle that a testee wrote: an independent reader, made from the text of the standard alone."""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import rfc8785
from blake3 import blake3

from semtrace_conformance.messages import BadMessageError, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from semtrace_conformance.tables import Tables

MANIFEST: Final = "semtrace.json"
_LIMIT: Final = 64 << 20
"""Largest file that is looked at, in bytes: the bundles of the suite are small."""
_TYPES: Final[dict[str, tuple[pa.DataType, int, str]]] = {
    "u8": (pa.uint8(), 1, "B"),
    "u32": (pa.uint32(), 2, "I"),
    "u64": (pa.uint64(), 3, "Q"),
    "i64": (pa.int64(), 4, "q"),
    "string": (pa.string(), 5, ""),
    "bytes32": (pa.binary(32), 6, "32s"),
}
"""By type of a column: its Arrow type, its type byte and the layout of a value."""
_JUDGED: Final = (
    "instance", "operation", "ready_ns", "released_ns", "submitted_ns", "first_token_ns", "finished_ns", "outcome",
    "prompt_tokens", "output_tokens", "output_ids", "attempts", "request_id", "finish_reason", "failure",
)  # fmt: skip
"""The columns of events that are judged of a replay in the world."""
_HEADER: Final = (
    "clock", "measured_at", "mode", "origin_unix_ns", "tolerance_ns", "work_digest", "plan", "plan_digest", "scenario",
    "backend",
)  # fmt: skip
"""The members of its header that are."""
_STORED: Final = frozenset({"tables", "packs"})
_OWN: Final = frozenset({"digest", "producer", "trace", "executions", "spec_version", "format"})
"""Members of the manifest that a writer makes itself."""


class UnsoundError(Exception):
    """The bundle is not what a bundle must be; the text says why."""


def observe(path: Path, tables: Tables) -> dict[str, Any]:
    """What there is at a path, as far as it can be read; what cannot be is in `problems`."""
    if not path.exists():
        return {}
    seen: dict[str, Any] = {"form": "directory" if path.is_dir() else "zip", "problems": []}
    try:
        seen.update(_bundle(_members(path), tables))
    except UnsoundError as error:
        seen["problems"] = [str(error)]
    return seen


def observe_execution(path: Path, tables: Tables) -> dict[str, Any]:
    """The execution that a replay in the world left, as far as it is judged; what cannot be read is in `problems`.

    Of each event that has output ids there is their digest.
    """
    if not path.exists():
        return {}
    try:
        members = _members(path)
        stored, named = _only_run(_manifest(members)), {MANIFEST}
        read = _part(members, stored, tables, tables.execution, named)
        digests = sorted(_content(members, stored, named))
    except UnsoundError as error:
        return {"problems": [str(error)]}
    events = _columns(read.get("events"), _JUDGED)
    events["output_digest"] = [
        digests[each] if each is not None and each < len(digests) else None
        for each in events.pop("output_ids")
    ]
    instances = _columns(read.get("instances"), ("task", "arrival_ns", "outcome"))
    header = stored.get("header", {})
    return {
        "execution": {
            "header": {name: header.get(name) for name in _HEADER},
            "instances": [
                dict(zip(instances, row, strict=True)) for row in zip(*instances.values(), strict=True)
            ],
            "events": events,
        }
    }


def _columns(table: pa.Table | None, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a table; those that were left out are null."""
    if table is None:
        return {name: [] for name in names}
    known = set(table.schema.names)
    return {
        name: table.column(name).to_pylist() if name in known else [None] * table.num_rows for name in names
    }


def _only_run(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    executions = manifest.get("executions", {})
    if list(executions) != ["run"]:
        raise UnsoundError(f"it has the executions {sorted(executions)}, must have one, `run`")
    stored: Mapping[str, Any] = executions["run"]
    return stored


def _members(path: Path) -> dict[str, bytes]:
    """The bytes of every member."""
    found: dict[str, bytes] = {}
    if path.is_dir():
        for each in sorted(path.rglob("*")):
            if each.is_symlink():
                raise UnsoundError(f"{each.name} is a link")
            if each.is_file():
                found[each.relative_to(path).as_posix()] = _limited(each.read_bytes, each.stat().st_size)
        return found
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if names != sorted(names, key=lambda name: (name != MANIFEST, name)):
                raise UnsoundError(
                    "the members are not in their order: the manifest, then the others by name"
                )
            for info in archive.infolist():
                if info.filename in found:
                    raise UnsoundError(f"the member {info.filename} stands twice")
                if info.compress_type != zipfile.ZIP_STORED:
                    raise UnsoundError(f"the member {info.filename} is compressed")
                found[info.filename] = _limited(
                    lambda name=info.filename: archive.read(name),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                    info.file_size,
                )
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise UnsoundError(f"neither a directory nor a ZIP file: {error}") from error
    return found


def _limited(read: Callable[[], bytes], size: int) -> bytes:
    if size > _LIMIT:
        raise UnsoundError(f"a member of {size} bytes")
    return read()


def _bundle(members: Mapping[str, bytes], tables: Tables) -> dict[str, Any]:
    manifest = _manifest(members)
    named = {MANIFEST}
    trace = manifest.get("trace")
    executions = manifest.get("executions", {})
    seen: dict[str, Any] = {"stated": {}, "executions": {}, "content": {}}
    if trace is not None:
        read = _part(members, trace, tables, tables.trace, named)
        seen["rows"] = {name: table.num_rows for name, table in read.items() if table.num_rows}
        for digest, levels in (("work_digest", {"work"}), ("trace_digest", {"work", "trace"})):
            seen[digest] = root_digest(read, tables, levels, f"semtrace v1 {digest.removesuffix('_digest')}")
            seen["stated"][digest] = trace.get(digest)
        seen["content"] = _content(members, trace, named)
        seen["annotations"] = read["annotations"].to_pylist() if "annotations" in read else []
    for name, stored in executions.items():
        read = _part(members, stored, tables, tables.execution, named)
        events = {key: table for key, table in read.items() if key in {"instances", "events"}}
        digest = root_digest(events, tables, {"run"}, "semtrace v1 execution")
        if stored.get("execution_digest") != digest:
            raise UnsoundError(f"the manifest says another digest of execution {name} than its tables have")
        rest = said({key: value for key, value in stored.items() if key not in _STORED})
        rest["header"] = said(rest.get("header", {}))
        seen["executions"][name] = {**rest, "content": _content(members, stored, named)}
    unnamed = sorted(set(members) - named)
    if unnamed:
        raise UnsoundError(f"the manifest does not name the member {unnamed[0]}")
    seen["manifest"] = said({key: value for key, value in manifest.items() if key not in _OWN})
    for part in ("trace", "producer"):
        extra = {key: value for key, value in (manifest.get(part) or {}).items() if "/" in key}
        if extra:
            seen["manifest"][part] = extra
    return seen


def said(document: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a document that say something: not those that are empty, which may be left out as well."""
    return {key: value for key, value in document.items() if value not in ([], {}, None) or "/" in key}


def _manifest(members: Mapping[str, bytes]) -> dict[str, Any]:
    raw = members.get(MANIFEST)
    if raw is None:
        raise UnsoundError(f"there is no {MANIFEST}")
    try:
        manifest = parse_json(raw)
        if not isinstance(manifest, dict):
            raise UnsoundError("the manifest is no JSON object")
        canonical = rfc8785.dumps(manifest)
        own = rfc8785.dumps({key: value for key, value in manifest.items() if key != "digest"})
    except (BadMessageError, rfc8785.CanonicalizationError) as error:
        raise UnsoundError(f"the manifest is not JSON: {error}") from error
    if canonical != raw:
        raise UnsoundError("the manifest is not in RFC 8785 form")
    if manifest.get("digest") != _show(blake3(own).digest()):
        raise UnsoundError("the manifest's digest is not its own")
    return manifest


def _stored(members: Mapping[str, bytes], stored: Mapping[str, Any], named: set[str]) -> bytes:
    """The bytes of a member that the manifest names."""
    path = str(stored.get("path"))
    if path in named:
        raise UnsoundError(f"the manifest names {path} twice")
    named.add(path)
    content = members.get(path)
    if content is None:
        raise UnsoundError(f"the member {path} is missing")
    if stored.get("bytes") != len(content) or stored.get("digest") != _show(blake3(content).digest()):
        raise UnsoundError(f"the member {path} has another size or digest than the manifest says")
    return content


def _arrow(content: bytes, path: str) -> pa.Table:
    try:
        with pa.ipc.open_file(content) as reader:
            table: pa.Table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise UnsoundError(f"{path} is no Arrow file: {error}") from error
    return table


def _part(
    members: Mapping[str, bytes],
    stored: Mapping[str, Any],
    tables: Tables,
    wanted: frozenset[str],
    named: set[str],
) -> dict[str, pa.Table]:
    """The tables of the trace or of an execution."""
    read = {}
    for name, entry in stored.get("tables", {}).items():
        if name not in wanted:
            raise UnsoundError(f"there is no table {name} in the standard")
        table = _arrow(_stored(members, entry, named), name)
        columns = {column.name: column for column in tables.columns(name)}
        for field in table.schema:
            column = columns.get(field.name)
            if column is None or field.type != _TYPES[column.type][0]:
                raise UnsoundError(
                    f"{name}.{field.name} is {field.type}, which the standard does not have there"
                )
            if table.column(field.name).null_count and not column.nullable:
                raise UnsoundError(f"{name}.{field.name} has nulls")
        missing = [
            name for name, column in columns.items() if not column.nullable and name not in table.schema.names
        ]
        if missing:
            raise UnsoundError(f"{name} has no column {missing[0]}")
        if entry.get("rows") != table.num_rows:
            raise UnsoundError(f"{name} has {table.num_rows} rows, the manifest says {entry.get('rows')}")
        read[name] = table.combine_chunks()
    return read


def _content(members: Mapping[str, bytes], stored: Mapping[str, Any], named: set[str]) -> dict[str, int]:
    """The content in the packs: by digest, its size."""
    found: dict[str, int] = {}
    for entry in stored.get("packs", []):
        pack = _arrow(_stored(members, entry, named), str(entry.get("path")))
        for row in pack.to_pylist():
            digest, content = row.get("digest"), row.get("content")
            if not isinstance(content, bytes) or digest != blake3(content).digest():
                raise UnsoundError("a pack holds content that has not its digest")
            if _show(digest) in found:
                raise UnsoundError("a pack holds content twice")
            found[_show(digest)] = len(content)
    return found


def root_digest(read: Mapping[str, pa.Table], tables: Tables, levels: set[str], context: str) -> str:
    """The digest of tables: of their columns of these levels, under a context string."""
    parts = []
    for name in sorted(read, key=tables.number):
        if read[name].num_rows and any(column.level in levels for column in tables.columns(name)):
            content = b"".join(_table(read[name], name, tables, levels))
            digest = blake3(content, derive_key_context="semtrace v1 table").digest()
            parts.append(bytes([tables.number(name)]) + digest)
    return _show(blake3(b"".join(parts), derive_key_context=context).digest())


def _table(table: pa.Table, name: str, tables: Tables, levels: set[str]) -> Iterator[bytes]:
    yield struct.pack("<BQ", tables.number(name), table.num_rows)
    for column in sorted(tables.columns(name), key=lambda each: each.number):
        if column.level not in levels or column.name not in table.schema.names:
            continue
        values = table.column(column.name).to_pylist()
        if any(value is not None for value in values):
            content = _column(column.number, column.type, values)
            digest = blake3(content, derive_key_context="semtrace v1 column").digest()
            yield bytes([column.number]) + digest


def _column(number: int, kind: str, values: list[Any]) -> bytes:
    _, type_byte, layout = _TYPES[kind]
    has_nulls = None in values
    parts = [struct.pack("<BBQB", number, type_byte, len(values), has_nulls)]
    if has_nulls:
        bits = sum((value is not None) << at for at, value in enumerate(values))
        parts.append(bits.to_bytes((len(values) + 7) // 8, "little"))
    if kind == "string":
        texts = [(value or "").encode() for value in values]
        parts += [struct.pack("<I", len(text)) for text in texts] + texts
    else:
        empty = b"" if kind == "bytes32" else 0
        parts += [struct.pack(f"<{layout}", empty if value is None else value) for value in values]
    return b"".join(parts)


def _show(digest: bytes) -> str:
    return f"blake3:{digest.hex()}"
