"""The test vectors of the standard: what their JSON files say is what this implementation reads, hashes and would make."""

from __future__ import annotations

import subprocess
import sys

import pytest

from semtrace.check import check_bundle
from semtrace.records.execution_tables import EXECUTION_TABLES
from semtrace.records.schema import Level
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.store.bundle import open_bundle
from support.vectors import FOLDER, NAMES, ROOT, agrees, bundle_of, expected


@pytest.mark.parametrize("name", NAMES)
def test_digests_and_hashed_bytes_are_those_of_the_vector(name):
    agrees(open_bundle(bundle_of(name)), expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_valid(name):
    assert check_bundle(open_bundle(bundle_of(name))) == []


def test_vectors_are_what_the_script_makes():
    command = [sys.executable, "tools/make_vectors.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["annotated", "tasks_recoded"])
def test_annotations_and_encodings_change_no_digest(name):
    assert expected(name)["trace"] == expected("tasks")["trace"]
    assert expected(name)["manifest_digest"] != expected("tasks")["manifest_digest"]


def test_executions_have_their_digests_however_they_are_encoded():
    assert expected("tasks_recoded")["executions"] == expected("tasks")["executions"]


def columns_of_the_vectors():
    """Each column that some vector hashes, with whether it has nulls there and whether it has none."""
    found = set()
    for name in NAMES:
        answer = expected(name)
        for part in (answer["trace"], *answer.get("executions", {}).values()):
            for entry in part["levels"]["columns"]:
                has_nulls = bytes.fromhex(entry["bytes"])[10] == 1
                found.add((entry["table"], entry["column"], has_nulls))
    return found


def test_every_table_with_a_digest_is_in_a_vector():
    declared = {
        table.name
        for table in (*TRACE_TABLES, *EXECUTION_TABLES)
        if any(column.level is not Level.NONE for column in table.columns)
    }
    # `transfers` is recorded without rows, so it is only in the digest of no bytes
    assert {table for table, _, _ in columns_of_the_vectors()} == declared - {"transfers"}
    details = expected("execution")["executions"]["detailed"]["levels"]["roots"]
    assert {root["name"]: root["bytes"] for root in details}["detail_digests.transfers"] == ""


def test_every_type_of_a_column_that_may_be_null_is_there_with_and_without_nulls():
    columns = {
        (table.name, column.name): column
        for table in (*TRACE_TABLES, *EXECUTION_TABLES)
        for column in table.columns
        if column.level is not Level.NONE
    }
    nullable = {column.type for column in columns.values() if column.nullable}
    found = columns_of_the_vectors()
    assert {columns[table, column].type for table, column, has_nulls in found if has_nulls} == nullable
    plain = {columns[table, column].type for table, column, has_nulls in found if not has_nulls}
    assert plain == {column.type for column in columns.values()}


def test_a_wrong_byte_is_told():
    answer = expected("nulls")
    entry = answer["trace"]["levels"]["columns"][-1]
    entry["bytes"] = entry["bytes"][:-2] + ("00" if entry["bytes"][-2:] != "00" else "01")
    with pytest.raises(AssertionError):
        agrees(open_bundle(bundle_of("nulls")), answer)


def test_the_lock_file_names_no_host():
    lines = (FOLDER / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in lines
    assert lines.count('"integrity"') == lines.count('"node_modules/')
