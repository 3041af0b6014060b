"""Making the whole suite, and comparing two makings of it."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
import zlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import yaml
import zstandard
from pydantic import TypeAdapter

from semtrace_conformance.certificate import Certificate
from semtrace_conformance.making.audit_cases import add_audit
from semtrace_conformance.making.book import Book, write_requirements
from semtrace_conformance.making.live_cases import add_live
from semtrace_conformance.making.planner_cases import add_planner
from semtrace_conformance.making.reader_archives import add_reader_archives
from semtrace_conformance.making.reader_arrow import add_reader_arrow
from semtrace_conformance.making.reader_bundles import add_reader_bundles
from semtrace_conformance.making.reader_cases import add_reader
from semtrace_conformance.making.reader_chat import add_reader_chat
from semtrace_conformance.making.reader_content import add_reader_content
from semtrace_conformance.making.reader_runs import add_reader_runs
from semtrace_conformance.making.reader_tables import add_reader_tables
from semtrace_conformance.making.release_cases import add_release
from semtrace_conformance.making.store_cases import add_store
from semtrace_conformance.making.token_cases import add_token_locked
from semtrace_conformance.making.writer_cases import add_writer
from semtrace_conformance.messages import ANSWER, GREETING, Run, Start, Stop
from semtrace_conformance.requirements import read_requirements
from semtrace_conformance.suite import DEFLATED, Case, Expected, Mutation, Requirements
from semtrace_conformance.witness import Entry, Script

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MADE: Final = ("cases", "expected", "requirements", "schema")
EXCLUSIONS: Final = "exclusions.yaml"


def fill() -> Book:
    """The book of all cases."""
    book = Book()
    for add in (
        add_reader,
        add_reader_tables,
        add_reader_content,
        add_reader_chat,
        add_reader_bundles,
        add_reader_arrow,
        add_reader_archives,
        add_reader_runs,
        add_writer,
        add_planner,
        add_release,
        add_audit,
        add_store,
        add_live,
        add_token_locked,
    ):
        add(book)
    return book


def read_excluded(path: Path, known: Iterable[str]) -> dict[str, str]:
    """The requirements that no case tests, each with the reason.

    Args:
        path: the file: by requirements, separated by spaces, or areas (`ST-MEA-*`), a reason.
        known: all requirements of the spec.
    """
    entries = yaml.safe_load(path.read_text("utf-8"))
    found: dict[str, str] = {}
    for names, reason in entries.items():
        for name in names.split():
            matched = [each for each in known if fnmatchcase(each, name)]
            found |= dict.fromkeys(matched, " ".join(reason.split()))
    return found


def make(root: Path, spec: Path) -> None:
    """Write the suite into a folder; what was made there before is replaced."""
    book = fill()
    pages = {requirement.id: requirement.file for requirement in read_requirements(spec)}
    excluded = read_excluded(spec.parent / "conformance" / EXCLUSIONS, pages)
    for part in MADE:
        shutil.rmtree(root / part, ignore_errors=True)
    book.write(root)
    write_requirements(root, book.requirements(pages, excluded))
    _write_schemas(root / "schema")


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each message, and of the suite's own files."""
    return {
        "start": Start.model_json_schema(),
        "started": GREETING.json_schema(),
        "run": Run.model_json_schema(),
        "answer": ANSWER.json_schema(),
        "stop": Stop.model_json_schema(),
        "case": TypeAdapter(Case | Mutation).json_schema(),
        "expected": Expected.model_json_schema(),
        "requirements": Requirements.model_json_schema(),
        "certificate": Certificate.model_json_schema(),
        "script": Script.model_json_schema(),
        "record": Entry.model_json_schema(),
    }


def _write_schemas(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, schema in schemas().items():
        whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        (folder / f"{name}.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")


def differences(one: Path, other: Path) -> list[str]:
    """Files that say different things in two makings.

    Another version of Arrow may write other bytes for the same table: where bytes differ, what they say is compared.
    """
    found = []
    files = [
        {
            path.relative_to(root).as_posix(): path
            for part in MADE
            for path in (root / part).rglob("*")
            if path.is_file()
        }
        for root in (one, other)
    ]
    for name in sorted({*files[0], *files[1]}):
        if name not in files[0] or name not in files[1]:
            found.append(f"{name}: only in {other if name not in files[0] else one}")
        else:
            raw = [each[name].read_bytes() for each in files]
            if name.endswith(DEFLATED):
                raw = [zlib.decompress(each) for each in raw]
            if raw[0] != raw[1] and _said(raw[0]) != _said(raw[1]):
                found.append(f"{name}: differs")
    return found


def _said(raw: bytes) -> Any:
    """What bytes say, whoever wrote them: tables as rows, archives as members, documents without digests of bytes."""
    if raw.startswith(b"ARROW1"):
        try:
            table = pa.ipc.open_file(raw).read_all()
        except pa.ArrowException:
            return raw
        return (table.schema, table.to_pylist())
    if raw.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            return zstandard.ZstdDecompressor().decompress(
                raw, max_output_size=1 << 20, allow_extra_data=False
            )
        except zstandard.ZstdError:
            return raw
    if raw.startswith(b"PK"):
        try:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                return {info.filename: _said(archive.read(info)) for info in archive.infolist()}
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
            return raw
    try:
        return _without_digests(json.loads(raw))
    except ValueError:
        return raw


def _without_digests(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_digests(each) for key, each in value.items() if key not in {"digest", "bytes"}}
    return [_without_digests(each) for each in value] if isinstance(value, list) else value
