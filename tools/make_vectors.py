"""Write spec/vectors: a bundle for each test vector, and a JSON file with the bytes that are hashed at each level of it.

With --check nothing is written: the digests and bytes of what would be made are compared with the committed JSON files.
(The bundles' own bytes are not: they depend on the versions of Arrow and zstd.)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from blake3 import blake3
from declared import ROOT
from vector_traces import VECTORS, Vector

from semtrace.check import check_bundle
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.schema import Level, Table
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.bundle import Bundle, open_bundle, write_bundle
from semtrace.store.container import MANIFEST, write_container
from semtrace.store.digests import (
    COLUMN_CONTEXT,
    EXECUTION_CONTEXT,
    TABLE_CONTEXT,
    TRACE_CONTEXT,
    WORK_CONTEXT,
    column_bytes,
    root_bytes,
    show,
    table_bytes,
)
from semtrace.store.manifest import StoredTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.records.columns import Columns
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace
    from semtrace.store.manifest import StoredExecution, StoredTrace

FOLDER: Final = ROOT / "spec" / "vectors"
Root = tuple[str, str, "Sequence[Table]", frozenset[Level]]
"""Name of a digest, its context, the tables that it is of, the levels of their columns."""


def trace_answer(trace: Trace) -> dict[str, Any]:
    """The digests of a trace, with what is hashed for them."""
    both = frozenset({Level.WORK, Level.TRACE})
    roots: list[Root] = [
        ("work_digest", WORK_CONTEXT, TRACE_TABLES, frozenset({Level.WORK})),
        ("trace_digest", TRACE_CONTEXT, TRACE_TABLES, both),
    ]
    levels = hashed(trace.tables, roots)
    return {root["name"]: root["digest"] for root in levels["roots"]} | {"levels": levels}


def execution_answer(execution: Execution) -> dict[str, Any]:
    """The digests of an execution, with what is hashed for them."""
    run = frozenset({Level.RUN})
    roots: list[Root] = [("execution_digest", EXECUTION_CONTEXT, EXECUTION_TABLES[:2], run)]
    roots += [
        (f"detail_digests.{spec.name}", EXECUTION_CONTEXT, (spec,), run)
        for spec in EXECUTION_TABLES[2:]
        if spec.name in execution.header.detail
    ]
    levels = hashed(execution.tables, roots)
    whole, *details = levels["roots"]
    return {
        "execution_digest": whole["digest"],
        "detail_digests": {root["name"].partition(".")[2]: root["digest"] for root in details},
        "levels": levels,
    }


def hashed(tables: Mapping[str, Columns], roots: Iterable[Root]) -> dict[str, list[dict[str, Any]]]:
    """The bytes and digests of columns, of tables under chosen levels, and of the digests that are made of these."""
    columns: dict[tuple[int, int], dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {"columns": [], "tables": [], "roots": []}
    for name, context, specs, levels in roots:
        for spec in specs:
            content = table_bytes(tables[spec.name], levels)
            if content is None or not any(column.level in levels for column in spec.columns):
                continue
            columns |= dict(_columns(tables[spec.name]))
            chosen = [level.value for level in Level if level in levels]
            found["tables"].append({"table": spec.name, "levels": chosen} | _entry(content, TABLE_CONTEXT))
        content = root_bytes([tables[spec.name] for spec in specs], levels)
        found["roots"].append({"name": name, "context": context} | _entry(content, context))
    found["columns"] = [columns[key] for key in sorted(columns)]
    return found


def _columns(table: Columns) -> Iterable[tuple[tuple[int, int], dict[str, Any]]]:
    for column in table.spec.columns:
        array = table.array(column.name)
        if column.level is not Level.NONE and array.null_count < len(array):
            content = b"".join(column_bytes(column, array))
            entry = {"table": table.spec.name, "column": column.name} | _entry(content, COLUMN_CONTEXT)
            yield (table.spec.number, column.number), entry


def _entry(content: bytes, context: str) -> dict[str, str]:
    return {"bytes": content.hex(), "digest": show(blake3(content, derive_key_context=context).digest())}


def answer(vector: Vector) -> dict[str, Any]:
    """What `digest.mjs --levels` prints of the vector's bundle, the digest of the manifest left out."""
    made: dict[str, Any] = {"trace": trace_answer(vector.trace)}
    if vector.executions:
        made["executions"] = {name: execution_answer(run) for name, run in sorted(vector.executions.items())}
    return made


def write(folder: Path, name: str, vector: Vector) -> Bundle:
    """Write a vector's bundle into the folder.

    Raises:
        SystemExit: the bundle is not valid.
    """
    path = folder / (name if vector.recoded else f"{name}.semtrace")
    if vector.recoded:
        with tempfile.TemporaryDirectory() as beside:
            plain = Path(beside) / "plain.semtrace"
            write_bundle(plain, vector.trace, vector.executions)
            recode(open_bundle(plain), path)
    else:
        write_bundle(path, vector.trace, vector.executions, overwrite=True)
    bundle = open_bundle(path)
    findings = check_bundle(bundle)
    if findings:
        raise SystemExit(f"{name}: {findings[0]}")
    return bundle


def recode(bundle: Bundle, path: Path) -> None:
    """Write a bundle as a directory, its tables encoded in as many other ways as the standard allows."""
    members: list[tuple[str, bytes | memoryview]] = []
    ways = iter(range(1000))

    def part(stored: StoredTrace | StoredExecution, specs: Sequence[Table]) -> dict[str, StoredTable]:
        members.extend((pack.path, memoryview(bundle.read(pack))) for pack in stored.packs)
        tables = {name: bundle.table(table) for name, table in stored.tables.items()}
        absent = next(spec for spec in specs if spec.name not in tables)  # is there, and has no rows
        tables[absent.name] = absent.empty()
        made = {}
        for name, table in tables.items():
            raw = _otherwise(table, next(ways))
            member = f"other/{len(members):02d}_{name}"
            members.append((member, raw))
            digest = show(blake3(raw).digest())
            made[name] = StoredTable(path=member, bytes=len(raw), digest=digest, rows=table.num_rows)
        return made

    manifest = bundle.manifest
    if manifest.trace is None:
        raise ValueError("the bundle has no trace")
    again = manifest.model_copy(
        update={
            "trace": manifest.trace.model_copy(update={"tables": part(manifest.trace, TRACE_TABLES)}),
            "executions": {
                name: run.model_copy(update={"tables": part(run, EXECUTION_TABLES)})
                for name, run in manifest.executions.items()
            },
        }
    )
    write_container(path, [(MANIFEST, again.sealed()), *members], directory=True, overwrite=True)


def _otherwise(table: pa.Table, way: int) -> bytes:
    """A table in another order of columns, in small batches, with other bytes under nulls, empty columns left out."""
    names = [
        name
        for name in reversed(table.schema.names)
        if not table.num_rows or table.column(name).null_count < table.num_rows
    ]
    schema = pa.schema([table.schema.field(name) for name in names])
    columns = [_with_other_nulls(table.column(name).combine_chunks()) for name in names]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=(None, "lz4", "zstd")[way % 3])
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema), max_chunksize=1 + way % 4)
    return bytes(memoryview(sink.getvalue()))


def _with_other_nulls(array: pa.Array) -> pa.Array:
    """The same values, with bytes under the nulls that nobody may see."""
    if not array.null_count:
        return array
    unseen = {pa.string(): "unseen", pa.binary(32): b"unseen" + bytes(26)}.get(array.type, 77)
    filled = array.fill_null(pa.scalar(unseen, array.type))
    bits = pa.array(array.is_valid().to_pylist()).buffers()[1]
    return pa.Array.from_buffers(array.type, len(array), [bits, *filled.buffers()[1:]])


def main() -> int:
    """Write the vectors, or compare them; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a vector is out of date"
    )
    check = parser.parse_args().check
    stale = []
    for name, make in VECTORS.items():
        vector = make()
        made = answer(vector)
        page = FOLDER / f"{name}.json"
        if check:
            committed = json.loads(page.read_text("utf-8")) if page.is_file() else {}
            if {key: value for key, value in committed.items() if key != "manifest_digest"} != made:
                stale.append(name)
        else:
            bundle = write(FOLDER, name, vector)
            made = {"manifest_digest": bundle.manifest.digest} | made
            page.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    committed_names = {page.stem for page in FOLDER.glob("*.json") if not page.stem.startswith("package")}
    stale += sorted(committed_names - set(VECTORS))
    for name in stale:
        print(f"spec/vectors/{name}.json is out of date: run tools/make_vectors.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
