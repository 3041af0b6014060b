"""Seeded mutations of bundles and streams, of their bytes and of what is in them with right digests."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from blake3 import blake3

from semtrace.records.document import canonical_json
from semtrace.store.bundle import open_bundle
from semtrace.store.container import MANIFEST, write_container
from semtrace.store.digests import show
from semtrace.store.zip_layout import Entry, central_header, end_records
from semtrace.stream.framing import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    file_header,
    frame,
    parse_frame_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXTREMES = (0, 1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**63 - 1, -1, -(2**63))
VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**53,
    "",
    "x",
    "blake3:" + "0" * 64,
    [],
    {},
    [[]],
    {"a": {}},
    "\x1b[2J",
    "[/x]",
)


@dataclass
class Source:
    """A bundle and the exchange stream made of it, in memory."""

    bundle: bytes
    members: dict[str, bytes]
    stream: bytes

    @classmethod
    def of(cls, bundle: Path, stream: Path) -> Source:
        """Read both."""
        opened = open_bundle(bundle)
        members = {MANIFEST: opened.manifest.sealed()}
        members.update({file.path: opened.read(file).to_pybytes() for file in opened.files()})
        return cls(bundle.read_bytes(), members, stream.read_bytes())


def mutate(source: Source, seed: int, path: Path) -> str:
    """Write a mutated copy to `path`; the same seed makes the same copy.

    Returns:
        `bundle` or `stream`, whichever was written.
    """
    rng = random.Random(seed)
    kind = rng.choices(list(_MUTATIONS), weights=[weight for _, weight in _MUTATIONS.values()])[0]
    return _MUTATIONS[kind][0](source, rng, path)


def _bytes(raw: bytes, rng: random.Random) -> bytes:
    """One to four byte-level changes."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data)) if data else 0
        change = rng.randrange(6)
        if change == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1 and data:
            data[at] = rng.randrange(256)
        elif change == 2:
            del data[at:]
        elif change == 3:
            del data[at : at + rng.randrange(1, 64)]
        elif change == 4:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        else:
            data[at : at + 8] = (
                rng.choice(EXTREMES).to_bytes(8, "little", signed=True) if rng.random() < 0.9 else b""
            )
    return bytes(data)


def _raw_bundle(source: Source, rng: random.Random, path: Path) -> str:
    path.write_bytes(_bytes(source.bundle, rng))
    return "bundle"


def _raw_stream(source: Source, rng: random.Random, path: Path) -> str:
    path.write_bytes(_bytes(source.stream, rng))
    return "stream"


def _resealed(members: dict[str, bytes], manifest: dict[str, Any], path: Path) -> str:
    """Write members under a manifest that states their right sizes and digests, and its own."""
    runs = manifest.get("executions")
    parts = [manifest.get("trace"), *(runs.values() if isinstance(runs, dict) else ())]
    for part in parts:
        if not isinstance(part, dict):
            continue
        tables, packs = part.get("tables"), part.get("packs")
        stored = [
            *(tables.values() if isinstance(tables, dict) else ()),
            *(packs if isinstance(packs, list) else ()),
        ]
        for file in stored:
            if isinstance(file, dict) and isinstance(file.get("path"), str) and file["path"] in members:
                content = members[file["path"]]
                file.update(bytes=len(content), digest=show(blake3(content).digest()))
    manifest.pop("digest", None)
    manifest["digest"] = show(blake3(canonical_json(manifest)).digest())
    written = {**members, MANIFEST: canonical_json(manifest)}
    path.unlink(missing_ok=True)
    write_container(path, list(written.items()), directory=False, overwrite=True)
    return "bundle"


def _member_bytes(source: Source, rng: random.Random, path: Path) -> str:
    members = dict(source.members)
    name = rng.choice([name for name in members if name != MANIFEST])
    members[name] = _bytes(members[name], rng)
    return _resealed(members, json.loads(members[MANIFEST]), path)


def _cells(source: Source, rng: random.Random, path: Path) -> str:
    """Changed cells and rows of a table, its digests put right."""
    members = dict(source.members)
    manifest = json.loads(members[MANIFEST])
    name = rng.choice([name for name in members if "/tables/" in name or name.startswith("tables/")])
    table = pa.ipc.open_file(pa.BufferReader(members[name])).read_all()
    for _ in range(rng.choice((1, 1, 2, 3))):
        table = _changed(table, rng)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    members[name] = sink.getvalue().to_pybytes()
    for part in (manifest["trace"], *manifest.get("executions", {}).values()):
        for file in part["tables"].values():
            if file["path"] == name:
                file["rows"] = table.num_rows
    return _resealed(members, manifest, path)


def _changed(table: pa.Table, rng: random.Random) -> pa.Table:
    rows = table.num_rows
    change = rng.randrange(8)
    if change == 0 and rows:
        at = rng.randrange(rows)
        return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])
    if change == 1 and rows:
        return pa.concat_tables([table, table.slice(rng.randrange(rows), 1)])
    if change == 2 and rows > 1:
        order = list(range(rows))
        one, other = rng.sample(order, 2)
        order[one], order[other] = other, one
        return table.take(order)
    if change == 3:
        return table.drop_columns([rng.choice(table.column_names)]) if table.num_columns > 1 else table
    column = rng.randrange(table.num_columns)
    field = table.schema.field(column)
    values = table.column(column).to_pylist()
    for _ in range(rng.choice((1, 1, 3))):
        if values:
            values[rng.randrange(len(values))] = _cell(field.type, values, rng)
    return table.set_column(column, field, pa.chunked_array([pa.array(values, field.type)]))


def _cell(kind: pa.DataType, values: list[Any], rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return None
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        low, high = (
            (0, 2**bits - 1)
            if pa.types.is_unsigned_integer(kind)
            else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        known = [value for value in values if value is not None] or [0]
        wanted = rng.choice(
            (rng.choice(EXTREMES), rng.choice(known) + rng.choice((-1, 1)), rng.randrange(64))
        )
        return min(max(wanted, low), high)
    if pa.types.is_fixed_size_binary(kind):
        return rng.randbytes(32)
    return rng.choice(("", "x" * 300, "\x1b[2J", "[/x]", "ü", "a/b", "0"))


def _manifest(source: Source, rng: random.Random, path: Path) -> str:
    """A changed value somewhere in the manifest, its digest put right."""
    members = dict(source.members)
    manifest = json.loads(members[MANIFEST])
    holder: Any = manifest
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = rng.choice(list(keys))
        if isinstance(holder[key], (dict, list)) and holder[key] and rng.random() < 0.8:
            holder = holder[key]
            continue
        break
    if rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = rng.choice(VALUES)
    if rng.random() < 0.5:
        return _resealed(members, manifest, path)
    manifest.pop("digest", None)
    manifest["digest"] = show(blake3(canonical_json(manifest)).digest())
    members[MANIFEST] = canonical_json(manifest)
    write_container(path, list(members.items()), directory=False, overwrite=True)
    return "bundle"


def _records(source: Source, rng: random.Random, path: Path) -> str:
    """Records of the stream dropped, doubled, swapped or changed, their checks put right."""
    payloads = []
    at = FILE_HEADER_BYTES
    while at < len(source.stream):
        parsed = parse_frame_header(source.stream[at : at + FRAME_HEADER_BYTES])
        assert parsed is not None, at
        begin = at + FRAME_HEADER_BYTES
        at = begin + parsed[1]
        payloads.append(source.stream[begin:at])
    for _ in range(rng.choice((1, 1, 2, 4))):
        where = rng.randrange(len(payloads))
        change = rng.randrange(4)
        if change == 0 and len(payloads) > 1:
            del payloads[where]
        elif change == 1:
            payloads.insert(where, payloads[rng.randrange(len(payloads))])
        elif change == 2:
            other = rng.randrange(len(payloads))
            payloads[where], payloads[other] = payloads[other], payloads[where]
        else:
            payloads[where] = _bytes(payloads[where], rng)
    path.write_bytes(
        file_header() + b"".join(frame(ordinal, payload) for ordinal, payload in enumerate(payloads))
    )
    return "stream"


def _equal_rows(source: Source, rng: random.Random, path: Path) -> str:
    """Some tables made of one row many times, which compresses to nothing; together as many rows as a bundle may claim."""
    members = dict(source.members)
    manifest = json.loads(members[MANIFEST])
    stored = list(manifest["trace"]["tables"].values())
    chosen = rng.sample(stored, rng.randint(1, len(stored)))
    rows = rng.choice((1000, 100_000, 1_000_000)) // len(chosen)
    for file in chosen:
        table = pa.ipc.open_file(pa.BufferReader(members[file["path"]])).read_all()
        members[file["path"]] = _compressed(table.take(pa.array([rng.randrange(table.num_rows)] * rows)))
        file["rows"] = rows
    return _resealed(members, manifest, path)


def _zeros(source: Source, rng: random.Random, path: Path) -> str:
    """A pack of much content that compresses to nothing: zeros, or JSON that takes thirty times its bytes when parsed."""
    members = dict(source.members)
    manifest = json.loads(members[MANIFEST])
    size = rng.choice((1, 4, 31, 40)) << 20
    pattern = rng.choice((b"\0", b"[],"))
    content = b"[" + pattern * (size // len(pattern)) + b"0]"
    table = pa.table(
        {
            "digest": pa.array([blake3(content).digest()], pa.binary(32)),
            "media_type": pa.array(["application/json"]),
            "content": pa.array([content], pa.large_binary()),
        }
    )
    members["artifacts/zeros.arrow"] = _compressed(table)
    manifest["trace"].setdefault("packs", []).append({"path": "artifacts/zeros.arrow", "artifacts": 1})
    artifacts = manifest["trace"]["tables"].get("artifacts")
    if artifacts is not None:  # one that is meant to be JSON, perhaps
        rows = pa.ipc.open_file(pa.BufferReader(members[artifacts["path"]])).read_all()
        at = rng.randrange(rows.num_rows)
        for name, value in (("digest", blake3(content).digest()), ("size", len(content))):
            values = rows.column(name).to_pylist()
            values[at] = value
            column = rows.schema.get_field_index(name)
            rows = rows.set_column(
                column, rows.schema.field(name), pa.array(values, rows.schema.field(name).type)
            )
        members[artifacts["path"]] = _compressed(rows)
    return _resealed(members, manifest, path)


def _directory(source: Source, rng: random.Random, path: Path) -> str:
    """A ZIP file whose directory has many entries, whatever it says of their number."""
    entry = central_header(Entry("a", 0, 0), 0)
    count = rng.choice((100, 99_999, 200_000))
    said = rng.choice((count, 3, 65_535))
    path.write_bytes(entry * count + end_records(said, count * len(entry), 0))
    return "bundle"


def _compressed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


_MUTATIONS: dict[str, tuple[Callable[[Source, random.Random, Path], str], float]] = {
    "raw bundle": (_raw_bundle, 1),
    "raw stream": (_raw_stream, 1),
    "member bytes": (_member_bytes, 2),
    "cells": (_cells, 5),
    "manifest": (_manifest, 2),
    "records": (_records, 3),
    "equal rows": (_equal_rows, 0.05),
    "zeros": (_zeros, 0.05),
    "directory": (_directory, 0.05),
}
