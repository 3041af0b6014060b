"""The Protobuf messages say what the tables say, and are what `make proto` writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from semtrace.records import enums
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.schema import Physical
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.v1 import enums_pb2, execution_pb2, trace_pb2

ROOT = Path(__file__).parents[3]
MODULES = [(trace_pb2, table) for table in TRACE_TABLES] + [
    (execution_pb2, table) for table in EXECUTION_TABLES
]
KINDS = {
    Physical.U8: FieldDescriptor.TYPE_UINT32,
    Physical.U32: FieldDescriptor.TYPE_UINT32,
    Physical.U64: FieldDescriptor.TYPE_UINT64,
    Physical.I64: FieldDescriptor.TYPE_INT64,
    Physical.STRING: FieldDescriptor.TYPE_STRING,
    Physical.BYTES32: FieldDescriptor.TYPE_BYTES,
}
VALUES = {
    Physical.U8: 255,
    Physical.U32: 2**32 - 1,
    Physical.U64: 2**64 - 1,
    Physical.I64: -(2**63),
    Physical.STRING: "Grüße \U0001f600",
    Physical.BYTES32: bytes(range(32)),
}
ZEROS = {Physical.STRING: "", Physical.BYTES32: b""}


def row(table):
    """A row with a value in every column."""
    return {column.name: max(column.enum) if column.enum else VALUES[column.type] for column in table.columns}


@pytest.mark.parametrize(("module", "table"), MODULES, ids=[table.name for _, table in MODULES])
def test_messages_have_the_columns_of_their_table(module, table):
    fields = module.DESCRIPTOR.message_types_by_name[table.entity].fields_by_name
    assert set(fields) == set(table.by_name)
    for column in table.columns:
        field = fields[column.name]
        assert field.number == column.number
        assert field.has_presence == column.nullable
        if column.enum:
            assert field.enum_type.name == column.enum.__name__
        elif column.refs or (table.name, column.name) == ("annotations", "entity"):
            assert field.type == FieldDescriptor.TYPE_UINT64, "a recorder's ids have 64 bits"
        else:
            assert field.type == KINDS[column.type]


@pytest.mark.parametrize(("module", "table"), MODULES, ids=[table.name for _, table in MODULES])
def test_messages_come_back_as_they_were(module, table):
    message = getattr(module, table.entity)
    full = message(**row(table))
    assert message.FromString(full.SerializeToString()) == full
    known = {column.name: value for column, value in zip(table.columns, row(table).values(), strict=True)}
    for column in table.columns:
        if column.nullable:
            known.pop(column.name)
    sparse = message.FromString(message(**known).SerializeToString())
    for column in table.columns:
        if column.nullable:
            assert not sparse.HasField(column.name), "null is not zero"
            zero = message(**{column.name: ZEROS.get(column.type, 0)})
            assert message.FromString(zero.SerializeToString()).HasField(column.name)


def test_enumerations_have_the_numbers_of_the_standard():
    for name, descriptor in enums_pb2.DESCRIPTOR.enum_types_by_name.items():
        kind = getattr(enums, name)
        numbers = {value.name: value.number for value in descriptor.values}
        zero = [value for value, number in numbers.items() if number == 0]
        assert len(zero) == 1
        assert zero[0].endswith("_UNSPECIFIED")
        prefix = zero[0].removesuffix("UNSPECIFIED")
        del numbers[zero[0]]
        assert numbers == {prefix + member.name: int(member) for member in kind}
    declared = {column.enum.__name__ for _, table in MODULES for column in table.columns if column.enum}
    assert declared <= set(enums_pb2.DESCRIPTOR.enum_types_by_name)


@pytest.mark.parametrize("script", ["generate_proto.py", "generate_tables.py", "generate_schemas.py"])
def test_generated_texts_are_up_to_date(script):
    done = subprocess.run(
        [sys.executable, f"tools/{script}", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    assert found, f"{name} belongs to the development environment"
    return found


def test_generated_code_is_up_to_date(tmp_path):
    protos = sorted((ROOT / "proto").glob("semtrace/v1/*.proto"))
    out = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([_tool("protoc"), f"--proto_path={ROOT / 'proto'}", *out, *protos], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "semtrace/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "semtrace/v1").glob("*_pb2.py*")}
    assert made == committed, "run make proto"


def test_the_messages_pass_the_linter():
    done = subprocess.run(
        [_tool("buf"), "lint", "proto"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
