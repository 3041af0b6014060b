"""The examples on the pages of the standard, and what writers owe."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from blake3 import blake3

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.errors import FormatError, UsageError
from semtrace.records import document
from semtrace.records.chat import join_message, split_message
from semtrace.records.document import Document
from semtrace.records.enums import EntityKind, OperationKind, Role
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.schema import Column, Physical
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.bundle import BundleInfo, open_bundle, rewrite_bundle, write_bundle
from semtrace.store.container import MANIFEST
from semtrace.store.digests import TABLE_CONTEXT, column_bytes, column_digest, show
from unit.check.example import example, put

if TYPE_CHECKING:
    from semtrace.records.trace import Trace

SPEC = Path(__file__).parents[3] / "spec"


def test_digests_of_columns_and_tables():
    """The examples of identity.md; ST-DIG-021 is how they are written."""
    page = (SPEC / "identity.md").read_text("utf-8")
    shown = re.findall(r"^    ([0-9a-f ]+)\n    (blake3:[0-9a-f]{64})$", page, re.MULTILINE)
    numbers = Column(3, "n", Physical.U32, "", nullable=True), pa.array([1, None, 258], pa.uint32())
    texts = Column(1, "t", Physical.STRING, ""), pa.array(["a", "é"])
    assert len(shown) == 2
    for (column, values), (content, digest) in zip((numbers, texts), shown, strict=True):
        assert b"".join(bytes(part) for part in column_bytes(column, values)).hex() == content.replace(
            " ", ""
        )
        assert show(column_digest(column, values)) == digest
    table = bytes.fromhex("07 0300000000000000 03") + column_digest(*numbers)
    assert show(blake3(table, derive_key_context=TABLE_CONTEXT).digest()) in page.split("## Example")[1]


def token_sums() -> Trace:
    """The example of ST-CTX-005."""
    b = TraceBuilder()
    task = b.task("t")
    first = b.operation(task, OperationKind.LLM, "a", prompt_tokens=15, output_tokens=7, reasoning_tokens=3)
    b.segment(first, Role.USER, tokens=10)
    b.segment(first, Role.USER, tokens=5)
    second = b.operation(task, OperationKind.LLM, "b", prompt_tokens=21)
    b.inherit(second, first, 3)
    b.segment(second, Role.USER, tokens=2)
    return b.build().trace


def test_tokens_of_inherited_context():
    assert check_trace(token_sums()) == []
    for wrong in (20, 22):
        [finding] = check_trace(put("operations", "prompt_tokens", {1: wrong})(token_sums()))
        assert finding.requirement == "ST-CTX-005"


def test_the_message_and_its_envelope():
    page = (SPEC / "chat.md").read_text("utf-8").split("*Example.*")[1]
    quoted = re.findall(r"`([^`]+)`", page)
    message, envelope = quoted[0], quoted[-1]
    split = split_message(json.loads(message))
    assert split.role is Role.TOOL
    assert [piece.text for piece in split.pieces] == ["42"]
    assert split.envelope() == envelope.encode()
    assert join_message(Role.TOOL, envelope.encode(), ["42"]) == json.loads(message)


def test_a_zip_file_is_written_in_one_way(tmp_path: Path):
    """ST-BND-006."""
    built = example()
    assert built.execution is not None
    write_bundle(tmp_path / "x", built.trace, {"native": built.execution})
    with zipfile.ZipFile(tmp_path / "x") as archive:
        infos = archive.infolist()
    names = [info.filename for info in infos]
    assert names == [MANIFEST, *sorted(names[1:])]
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.extra for info in infos} == {b""}
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}


def test_what_is_there_is_not_replaced_unasked(tmp_path: Path):
    """ST-BND-008."""
    trace = example().trace
    path = tmp_path / "x"
    path.write_text("mine")
    with pytest.raises(UsageError):
        write_bundle(path, trace)
    assert path.read_text() == "mine"
    with pytest.raises(FormatError):
        write_bundle(tmp_path / "y", trace, info=BundleInfo(extra={"test/x": float("nan")}))
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_packs_are_read_in_parts(tmp_path: Path):
    """ST-BND-023."""
    b = TraceBuilder()
    task = b.task("t")
    for at in range(12):
        operation = b.operation(task, OperationKind.TOOL, "tool", duration_ns=0)
        b.output(operation, bytes([at]) * 300_000, "application/octet-stream")
    write_bundle(tmp_path / "x", b.build().trace, directory=True)
    pack = pa.ipc.open_file(tmp_path / "x" / "artifacts" / "00000.arrow")
    assert pack.num_record_batches == 4
    assert check_trace(open_bundle(tmp_path / "x").trace) == []


def test_what_is_not_known_is_kept(tmp_path: Path):
    """ST-EVO-004 and ST-ANN-004."""
    built = example()
    info = BundleInfo(optional_features=["example.org/colour"], extra={"example.org/colour": "blue"})
    write_bundle(tmp_path / "a", built.trace, info=info)
    rewrite_bundle(open_bundle(tmp_path / "a"), tmp_path / "b", directory=True)
    again = open_bundle(tmp_path / "b")
    write_bundle(tmp_path / "c", again.trace, info=again.info)
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    kept = open_bundle(tmp_path / "c")
    assert kept.manifest.optional_features == ["example.org/colour"]
    assert kept.info.extra == {"example.org/colour": "blue"}
    assert kept.trace["annotations"].data.equals(built.trace["annotations"].data)
    assert kept.trace["annotations"].ints("entity_kind")[0] == EntityKind.TRACE


def test_numbers_are_not_used_again():
    """ST-EVO-005, inside of one version: no number stands for two things, none that is reserved for one."""
    tables = [*TRACE_TABLES, *EXECUTION_TABLES]
    assert len({table.number for table in tables}) == len(tables)
    for table in tables:
        numbers = [column.number for column in table.columns]
        assert len(set(numbers)) == len(numbers)
        assert not set(numbers) & set(table.reserved)


class Note(Document):
    text: str


def test_documents_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """ST-DOC-005."""
    path = tmp_path / "note.json"
    content: dict[str, Any] = {"text": "x" * 100}
    path.write_text(json.dumps(content))
    assert document.DOCUMENT_LIMIT == 24 << 20
    assert Note.read(path).text == content["text"]
    monkeypatch.setattr(document, "DOCUMENT_LIMIT", 100)
    with pytest.raises(FormatError, match="larger than 100 bytes"):
        Note.read(path)


@pytest.mark.parametrize(("prompt", "right"), [(15, True), (14, False), (16, False), (7, False)])
def test_an_input_without_pieces_counts_with_the_tokens_that_are_known(prompt: int, right: bool):
    """ST-CTX-005: an operation of 8 prompt and 4 output tokens, of whose input nothing else is known, and one that inherits it."""
    made = TraceBuilder()
    task = made.task("one")
    first = made.operation(task, OperationKind.LLM, "a", prompt_tokens=8, output_tokens=4, reasoning_tokens=0)
    second = made.operation(task, OperationKind.LLM, "b", prompt_tokens=prompt, output_tokens=1)
    made.inherit(second, first, 1)
    made.segment(second, Role.USER, tokens=3)
    found = {finding.requirement for finding in check_trace(made.build().trace)}
    assert found == (set() if right else {"ST-CTX-005"})
