"""Spans in the forms that exporters write, and spans that are broken, doubled or failed."""

from __future__ import annotations

import json

import pytest

from autogen_runs import EXAMPLES, load, recording
from semtrace.records.enums import EdgeKind, EventOutcome, Evidence, OperationStatus
from semtrace.replay.run import replay_findings
from semtrace_adapters.autogen.sources import kind_of
from semtrace_adapters.autogen.spans import SpanTree, json_values, parse_spans


def spans_of(name):
    lines = (EXAMPLES / name / "spans.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def otlp(spans):
    """The spans as an OTLP/JSON document."""

    def value(v):
        if isinstance(v, bool):
            return {"boolValue": v}
        if isinstance(v, int):
            return {"intValue": str(v)}
        if isinstance(v, list):
            return {"arrayValue": {"values": [value(i) for i in v]}}
        return {"doubleValue": v} if isinstance(v, float) else {"stringValue": v}

    def nano(text):
        from semtrace_adapters.autogen.times import unix_ns

        return str(unix_ns(text)[0])

    made = []
    for span in spans:
        error = span["status"]["status_code"] == "ERROR"
        made.append(
            {
                "traceId": span["context"]["trace_id"][2:],
                "spanId": span["context"]["span_id"][2:],
                "parentSpanId": (span["parent_id"] or "")[2:],
                "name": span["name"],
                "startTimeUnixNano": nano(span["start_time"]),
                "endTimeUnixNano": nano(span["end_time"]),
                "attributes": [{"key": k, "value": value(v)} for k, v in span["attributes"].items()],
                "links": [{"spanId": link["context"]["span_id"][2:]} for link in span["links"]],
                "status": {"code": 2 if error else 1, "message": span["status"].get("description", "")},
                "events": [],
            }
        )
    return {"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}


FORMS = {
    "pretty, one after the other": lambda spans: "".join(json.dumps(s, indent=4) + "\n" for s in spans),
    "array": lambda spans: json.dumps(spans, indent=1),
    "reversed": lambda spans: "".join(json.dumps(s) + "\n" for s in reversed(spans)),
    "otlp": lambda spans: json.dumps(otlp(spans)),
    "otlp, one document a line": lambda spans: "".join(json.dumps(otlp([s])) + "\n" for s in spans),
    "twice": lambda spans: "".join(json.dumps(s) + "\n" for s in spans + spans),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["graphflow", "agenttools"])
def test_every_form_gives_the_same_work(tmp_path, form, name):
    path = tmp_path / "spans.json"
    path.write_text(FORMS[form](spans_of(name)), encoding="utf-8")
    run, plain = load(path), recording(EXAMPLES / name, "spans.jsonl")
    assert run.edges(EdgeKind.CONTROL) == plain.edges(EdgeKind.CONTROL)
    assert run.edges(EdgeKind.DATA) == plain.edges(EdgeKind.DATA)
    assert run.tokens() == plain.tokens()
    assert [run.event(o)["finished_ns"] for o in run.llm] == [
        plain.event(o)["finished_ns"] for o in plain.llm
    ]
    assert run.losses.get("spans.repeated", 0) == (len(spans_of(name)) if form == "twice" else 0)


@pytest.mark.parametrize("form", [otlp, lambda spans: spans], ids=["OTLP", "array"])
def test_batches_longer_than_what_is_looked_at_first(tmp_path, form):
    """An exporter of batches writes one long document a line; the first alone may be longer than the file's head."""
    spans = spans_of("graphflow")
    for span in spans:
        span["attributes"]["padding"] = "x" * 8000
    path = tmp_path / "spans.jsonl"
    batches = [json.dumps(form(spans[at::2])) for at in range(2)]
    assert min(map(len, batches)) > 1 << 18
    path.write_text("\n".join(batches) + "\n")
    assert kind_of(path) == ("spans", 90)
    assert len(load(path).llm) == 10


def test_broken_spans_are_reported(tmp_path):
    lines = [json.dumps(s) for s in spans_of("graphflow")]
    lines.insert(3, '{"name": "cut off", "context": {"trace_')
    lines.insert(9, json.dumps({"name": "no ids", "context": {}, "start_time": "2026-01-01T00:00:00Z"}))
    lines.insert(
        12,
        json.dumps({"name": "no time", "context": {"span_id": "0x1", "trace_id": "0x1"}, "start_time": "?"}),
    )
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    run = load(path)
    assert len(run.llm) == 10
    assert run.losses["json.broken"] == 1
    assert run.losses["spans.broken"] == 2


def test_a_wrapping_span_is_not_counted(tmp_path):
    spans = spans_of("graphflow")
    for span in [s for s in spans if s["name"] == "ChatCompletion"]:
        outer = json.loads(json.dumps(span))
        outer["name"] = "OpenAIChatCompletionClient.create"
        outer["context"]["span_id"] = "0xf" + span["context"]["span_id"][3:]
        span["parent_id"] = outer["context"]["span_id"]
        spans.append(outer)
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(map(json.dumps, spans)), encoding="utf-8")
    run = load(path)
    assert len(run.llm) == 10
    assert run.tokens() == recording(EXAMPLES / "graphflow").tokens()
    assert run.losses["spans.doubled"] == 10


def test_a_call_that_failed_is_in_the_spans_only(tmp_path):
    folder = EXAMPLES / "graphflow"
    spans = spans_of("graphflow")
    calls = sorted((s for s in spans if s["name"] == "ChatCompletion"), key=lambda s: s["start_time"])
    failed = calls[-1]
    failed["status"] = {"status_code": "ERROR", "description": "500 - server gone"}
    for key in [
        k for k in failed["attributes"] if k.startswith(("output.", "llm.token_count", "llm.output"))
    ]:
        del failed["attributes"][key]
    events = [
        line
        for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        if not ('"LLMCall"' in line and "reviewer_" in line.partition('"agent_id"')[2])
    ]
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, spans)), encoding="utf-8")
    (tmp_path / "events.jsonl").write_text("\n".join(events), encoding="utf-8")
    run = load(tmp_path)
    assert len(run.llm) == 10
    last = run.llm[-1]
    row = run.op(last)
    assert (row["name"], row["status"]) == ("reviewer", OperationStatus.ERROR)
    assert row["duration_ns"] > 0
    assert row["duration_evidence"] == Evidence.OBSERVED
    assert (row["prompt_tokens"], row["output"]) == (None, None)
    assert run.event(last)["outcome"] == EventOutcome.ERROR
    assert run.losses["calls.unlogged"] == 1
    assert ("editor", "reviewer") in run.edges(EdgeKind.DATA), "what it was sent is known"


def killed(tmp_path, name):
    """A recording that ends while the last model call, or the last tool, is under way."""
    spans = spans_of("graphflow")
    folder = EXAMPLES / "graphflow"
    (tmp_path / "config.json").write_text(
        (folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    cut = max((span for span in spans if span["name"].startswith(name)), key=lambda span: span["start_time"])
    begun, end = cut["start_time"], cut["end_time"]
    kept = []
    for span in spans:
        if span["start_time"] > begun:
            continue
        if span["end_time"] >= end:
            span["end_time"] = None
            drop = ("llm.output", "llm.token", "output.", "gen_ai.response")
            span["attributes"] = {k: v for k, v in span["attributes"].items() if not k.startswith(drop)}
        kept.append(span)
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, kept)), encoding="utf-8")
    return load(tmp_path)


def test_a_call_that_was_under_way_when_the_run_was_killed_is_left_out(tmp_path):
    run = killed(tmp_path, "ChatCompletion")
    assert len(run.llm) == 9
    assert run.losses["calls.unended"] == 1
    assert not {"calls.unlogged", "tokens.unknown", "output.unknown"} & set(run.losses)
    assert list(replay_findings(run.trace)) == []


def test_a_tool_that_was_under_way_when_the_run_was_killed_is_left_out(tmp_path):
    run = killed(tmp_path, "execute_tool")
    assert run.losses["tools.unended"] == 2, "two ran side by side"
    assert "tools.duration" not in run.losses
    assert list(replay_findings(run.trace)) == []


def test_spans_that_go_round_in_a_circle():
    tree = SpanTree()
    for a, b in (("a", "b"), ("b", "a")):
        for span in parse_spans(
            {
                "name": "x",
                "context": {"span_id": a, "trace_id": "t"},
                "parent_id": b,
                "start_time": "2026-01-01T00:00:00Z",
                "end_time": None,
            }
        ):
            tree.add(span)
    assert [s.span_id for s in tree.ancestors("a")] == ["a", "b"]
    assert [s.span_id for s in tree.below(tree.spans["a"])] == ["b"]
    assert tree.spans["a"].end_ns is None


def test_json_values():
    values = list(json_values('{"a": 1}\n[2]\n{oops\n  {\n "b": 3}\n'))
    assert [v for v, _ in values if not isinstance(v, ValueError)] == [{"a": 1}, [2], {"b": 3}]
    assert [line for v, line in values if isinstance(v, ValueError)] == [3]
