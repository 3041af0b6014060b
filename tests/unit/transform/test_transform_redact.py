"""Redacting: no content above the level, equal content still equal, nothing else changed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from semtrace.build import TraceBuilder
from semtrace.check import check_bundle
from semtrace.errors import UsageError
from semtrace.records.enums import Availability, ContentLevel, OperationKind
from semtrace.records.media import content_level
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import execution_digest, show, trace_digest, work_digest
from semtrace.store.manifest import SourceFile
from semtrace.testing import random_trace
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.filter import filter_tasks
from semtrace.transform.merge import merge_traces
from semtrace.transform.redact import redact
from support.transform_cases import crew, findings, parts_of, replay_of

LEVELS = (ContentLevel.TOKEN_IDS, ContentLevel.BLOCK_HASHES, ContentLevel.SHAPE)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_above_the_level_is_there(level, seed, tmp_path):
    """ST-LIN-060, ST-LIN-061, ST-LVL-002."""
    whole = parts_of(random_trace(seed))
    made = redact(whole, level)
    assert findings(made) == []
    before, after = whole.trace["artifacts"], made.trace["artifacts"]
    settings = set(whole.trace.operations.ints("settings").tolist())
    for row, (old, new) in enumerate(zip(before.digests(), after.digests(), strict=True)):
        let_out = content_level(before.strings("media_type")[row]) >= level or row in settings
        assert (old == new) == let_out
        assert (made.trace.content.get(new) is not None) == let_out
        assert after.ints("availability")[row] == (
            Availability.EMBEDDED if let_out else Availability.WITHHELD
        )
    for name, columns in whole.trace.tables.items():
        if name == "tasks":
            assert made.trace[name].data.drop(["name"]).equals(columns.data.drop(["name"]))
        elif name not in {"trace", "artifacts"}:
            assert made.trace[name].data.equals(columns.data), name
    for column in ("size", "media_type"):
        assert after.array(column).equals(before.array(column))
    write_bundle(tmp_path / "out", made.trace, made.executions, info=made.info)
    assert check_bundle(open_bundle(tmp_path / "out")) == []
    here = np.flatnonzero(after.ints("availability") == Availability.EMBEDDED)
    assert set(open_bundle(tmp_path / "out").trace.content) == {after.digests()[row] for row in here}


def test_keys_are_thrown_away():
    whole = parts_of(crew().build())
    one, other = redact(whole, ContentLevel.SHAPE), redact(whole, ContentLevel.SHAPE)
    digests = [parts.trace["artifacts"].digests() for parts in (whole, one, other)]
    assert len({*digests[0], *digests[1], *digests[2]}) == 3 * len(digests[0])
    deeper = redact(redact(whole, ContentLevel.TOKEN_IDS), ContentLevel.SHAPE)
    assert findings(deeper) == []
    assert [step["parameters"]["level"] for step in deeper.info.lineage] == ["token_ids", "shape"]


def test_nobody_can_compare_with_a_guess():
    """ST-LIN-063: no digest of what was there before is left, those of the lineage, of files and of old ids included."""
    whole = parts_of(crew().build())
    file = SourceFile(
        name="events.jsonl", bytes=3, digest=show(b"\7" * 32), adapter="autogen", adapter_version="1"
    )
    whole = replace(whole, info=replace(whole.info, sources=[file]))
    piece = merge_traces([filter_tasks(whole, [f"task={at}"]) for at in (2, 0)])
    made = redact(piece, ContentLevel.SHAPE)
    assert findings(made) == []
    before = {
        show(digest(parts.trace))[7:] for parts in (whole, piece) for digest in (work_digest, trace_digest)
    }
    before |= {each.hex() for parts in (whole, piece) for each in parts.trace["artifacts"].digests()}
    before.add((b"\7" * 32).hex())
    said = json.dumps([made.info.lineage, [each.as_json() for each in made.info.sources]])
    keys = {key for key in made.trace["annotations"].strings("key") if key.startswith("semtrace.id/")}
    assert keys
    assert [name for name in before if name[:16] in said + " ".join(keys)] == []
    digits = {key.removeprefix("semtrace.id/") for key in keys}
    assert all(f"blake3:{each}" in said for each in digits)  # old ids can still be followed


def test_parts_of_one_redacted_trace_go_together_again():
    made = redact(parts_of(crew().build()), ContentLevel.SHAPE)
    pieces = [filter_tasks(made, [f"task={at}"]) for at in range(3)]
    assert trace_digest(merge_traces(pieces).trace) == trace_digest(made.trace)


def test_executions_and_annotations():
    """ST-LIN-062."""
    from semtrace.records.columns import Columns
    from semtrace.store.digests import artifact_digest
    from semtrace.transform.rows import integers, with_column

    built = crew().build()
    events = built.execution.events
    ids = np.zeros(events.rows, dtype=np.int64)
    data = with_column(events.data, "output_ids", integers(ids, events.data.schema.field("output_ids").type))
    content = {artifact_digest(b"\1\0\0\0"): b"\1\0\0\0"}
    native = type(built.execution)(
        built.execution.header, {**built.execution.tables, "events": Columns(events.spec, data)}, content
    )
    whole = Parts(built.trace, {"native": native, "replayed": replay_of(built.trace)})
    whole = Parts(whole.trace, whole.executions, filter_tasks(whole, ["task>=0"]).info)
    made = redact(whole, ContentLevel.TOKEN_IDS)
    assert findings(made) == []
    assert list(made.executions) == ["native"]
    assert made.executions["native"].header.work_digest == show(work_digest(made.trace))
    assert execution_digest(made.executions["native"]) == execution_digest(native)
    assert list(made.executions["native"].content) == list(content)
    made = redact(whole, ContentLevel.SHAPE, annotations=False)
    assert findings(made) == []
    assert list(made.executions["native"].content) == []
    assert made.executions["native"].events.array("output_ids").null_count == events.rows
    assert made.trace["annotations"].rows == 0
    step = made.info.lineage[-1]
    assert step["executions"]["native"] == {"kept": True, "note": "output ids are left out"}
    assert not step["executions"]["replayed"]["kept"]
    assert "7 annotations are left out" in step["notes"]


def test_old_ids_stay_when_annotations_go():
    piece = filter_tasks(parts_of(crew().build()), ["task=1"])
    made = redact(piece, ContentLevel.SHAPE, annotations=False)
    assert {key.partition("/")[0] for key in made.trace["annotations"].strings("key")} == {"semtrace.id"}


def test_names_of_tasks_say_only_which_are_equal():
    """ST-LIN-060."""
    builder = TraceBuilder()
    for name in ("What ails Ms Roe?", "", "What ails Ms Roe?", "task-0"):
        builder.operation(builder.task(name), OperationKind.LLM, "doctor", prompt_tokens=3, output_tokens=2)
    whole = parts_of(builder.build())
    made = redact(whole, ContentLevel.SHAPE)
    assert findings(made) == []
    assert made.trace.tasks.strings("name") == ["task-0", "task-1", "task-0", "task-2"]
    assert "4 tasks have neutral names" in made.info.lineage[-1]["notes"]
    kept = redact(whole, ContentLevel.SHAPE, task_names=True)
    assert kept.trace.tasks.data.equals(whole.trace.tasks.data)
    assert made.trace.operations.data.equals(kept.trace.operations.data)


@pytest.mark.parametrize("level", [ContentLevel.TEXT, ContentLevel.TOKEN_IDS])
def test_a_level_that_is_not_less_open_is_refused(level):
    made = redact(parts_of(crew().build()), ContentLevel.TOKEN_IDS)
    with pytest.raises(UsageError, match="not more open"):
        redact(made, level)
