"""Detection, and input that is wrong, empty, or something else."""

from __future__ import annotations

import json

import pytest

from autogen_logs import conversation
from autogen_runs import EXAMPLES, load, recording
from semtrace.errors import ExitCode, FormatError, UsageError
from semtrace.records.enums import Outcome
from semtrace_adapters.autogen import ADAPTER
from semtrace_adapters.autogen.config import read_config
from semtrace_adapters.base import ImportOptions, adapters, choose


@pytest.mark.parametrize("name", ["graphflow", "graphloop", "swarm", "nested", "agenttools", "streaming"])
def test_detection_of_recordings(name):
    folder = EXAMPLES / name
    assert ADAPTER.detect([folder]) == 95
    for file, least in (("events.jsonl", 95), ("spans.jsonl", 90), ("stream.jsonl", 80), ("config.json", 85)):
        if (folder / file).exists():
            assert ADAPTER.detect([folder / file]) == least
    assert ADAPTER.detect([folder / "server.jsonl"]) == 0
    assert choose([folder]).name == "autogen"


def test_the_adapter_is_installed():
    assert adapters()["autogen"].name == "autogen"
    assert "AutoGen" in adapters()["autogen"].summary


def test_detection_of_other_things(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "noise.log").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "list.json").write_text("[1, 2, 3]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "request.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 6}\n')
    (tmp_path / "message.jsonl").write_text('{"type": "Message", "payload": "of something else"}\n')
    assert ADAPTER.detect([tmp_path]) == 0
    assert ADAPTER.detect([tmp_path / "not there"]) == 0


def test_general_spans_are_hardly_autogens(tmp_path):
    span = {
        "name": "ChatCompletion",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "start_time": "2026-01-01T00:00:00Z",
        "attributes": {"openinference.span.kind": "LLM"},
    }
    (tmp_path / "spans.jsonl").write_text(json.dumps(span) + "\n")
    assert 0 < ADAPTER.detect([tmp_path]) < 50


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "autogen.nothing"),
        (b"\x00\x01\x02", "autogen.nothing"),
        (b'{"a": ', "autogen.nothing"),
        (b"plain text\nand more\n", "autogen.nothing"),
        (b'{"type": "TeamState", "agent_states": {}}', "autogen.no_run"),
    ],
)
def test_nothing_to_read(tmp_path, content, code):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(FormatError) as raised:
        ADAPTER.read([path], ImportOptions())
    assert raised.value.code == code
    assert raised.value.hint
    assert raised.value.exit_code == ExitCode.FINDINGS


def test_a_config_alone_is_no_run():
    with pytest.raises(FormatError) as raised:
        ADAPTER.read([EXAMPLES / "graphflow" / "config.json"], ImportOptions())
    assert raised.value.code == "autogen.no_run"


def test_an_empty_folder_and_a_missing_file(tmp_path):
    with pytest.raises(FormatError):
        ADAPTER.read([tmp_path], ImportOptions())
    with pytest.raises(UsageError):
        ADAPTER.read([tmp_path / "missing.jsonl"], ImportOptions())


def test_events_without_a_single_call(tmp_path):
    log = conversation(1)
    log.lines = [
        line
        for line in log.lines
        if line[1]["type"] == "Message" and not line[1]["payload"].startswith(('{"m', '{"r'))
    ]
    with pytest.raises(FormatError) as raised:
        ADAPTER.read([log.write(tmp_path / "events.jsonl")], ImportOptions())
    assert raised.value.code == "autogen.no_calls"


def test_events_of_odd_types(tmp_path):
    path = conversation(2).write(tmp_path / "events.jsonl")
    odd = [
        {"type": "LLMCall"},
        {
            "type": "LLMCall",
            "messages": 5,
            "response": 7,
            "agent_id": 9,
            "tools": "x",
            "prompt_tokens": "many",
        },
        {"type": "LLMCall", "messages": [1, 2], "response": {"choices": []}, "prompt_tokens": -1},
        {"type": "LLMStreamEnd", "response": None},
        {"type": "LLMStreamStart", "messages": None},
        {"type": "ToolCall"},
        {"type": "ToolCall", "tool_name": None, "arguments": None, "result": {"a": 1}, "agent_id": ""},
        {"type": "Message"},
        {
            "type": "Message",
            "payload": "[1]",
            "delivery_stage": "DeliveryStage.SEND",
            "kind": 3,
            "sender": "x",
        },
        {
            "type": "Message",
            "payload": '{"messages": 3}',
            "delivery_stage": "DeliveryStage.SEND",
            "kind": "PUBLISH",
        },
        {"type": "ToolCallRequestEvent", "content": [3, {"id": None}, {"id": 4}]},
        {"type": "ToolCallExecutionEvent", "content": "?"},
        {"type": "MessageHandlerException"},
    ]
    with path.open("a", encoding="utf-8") as file:
        for event in odd:
            file.write(json.dumps({"ts": 1_795_971_299.5, "data": event}) + "\n")
    run = load(path)
    assert run.losses["output.unknown"] >= 1
    assert run.losses["stream.open"] == 1
    assert [run.name(o) for o in run.llm][:2] == ["ann", "bob"]


def test_a_folder_of_several_recordings():
    run = load(EXAMPLES / "swarm", EXAMPLES / "graphloop")
    assert run.trace.tasks.rows == 2
    one, two = recording(EXAMPLES / "swarm"), recording(EXAMPLES / "graphloop")
    assert len(run.llm) == len(one.llm) + len(two.llm)
    assert run.tokens() == tuple(a + b for a, b in zip(one.tokens(), two.tokens(), strict=True))


STREAMS = {
    "items": lambda items, _: "".join(json.dumps(i) + "\n" for i in items),
    "items in data": lambda items, _: "".join(json.dumps({"class": "X", "data": i}) + "\n" for i in items),
    "array of items": lambda items, _: json.dumps(items, indent=1),
    "result": lambda _, result: json.dumps(result),
    "result, indented": lambda _, result: json.dumps(result, indent=2),
    "result, not ASCII": lambda _, result: "\ufeff" + json.dumps(result, ensure_ascii=False),
}


@pytest.mark.parametrize("form", STREAMS)
def test_forms_of_run_streams(tmp_path, form):
    lines = (EXAMPLES / "swarm" / "stream.jsonl").read_text(encoding="utf-8").splitlines()
    items = [json.loads(line)["data"] for line in lines]
    (tmp_path / "what.txt").write_text(STREAMS[form](items, items[-1]), encoding="utf-8")
    (tmp_path / "events.log.1").write_bytes((EXAMPLES / "swarm" / "events.jsonl").read_bytes())
    run, alone = load(tmp_path), load(tmp_path / "what.txt")
    assert len(run.llm) == 5
    assert len(alone.llm) == 5
    assert run.trace.tasks.ints("outcome").tolist() == [Outcome.SUCCESS]
    assert alone.trace.tasks.ints("outcome").tolist() == [Outcome.SUCCESS]
    assert run.losses.keys() == {"delays.inferred", "times.start"}


def test_a_config_of_one_agent():
    config = json.loads((EXAMPLES / "swarm" / "config.json").read_text(encoding="utf-8"))
    triage = config["config"]["participants"][0]
    assert read_config(triage).names == ["triage"]


def test_progress_and_sources():
    steps = []
    result = ADAPTER.read(
        [EXAMPLES / "graphflow"], ImportOptions(progress=lambda done, total: steps.append((done, total)))
    )
    names = {"config.json", "events.jsonl", "spans.jsonl", "stream.jsonl"}
    assert {p.name for p in result.sources} == names
    total = sum((EXAMPLES / "graphflow" / n).stat().st_size for n in names - {"config.json"})
    assert steps[-1][0] == total
    assert steps == sorted(steps)
    ignored = [loss for loss in result.loss if loss.code == "files.other"]
    assert [loss.where for loss in ignored] == [["server.jsonl"]]


def test_the_same_bytes_each_time():
    from semtrace.store.digests import trace_digest

    digests = {trace_digest(ADAPTER.read([EXAMPLES / "agenttools"], ImportOptions()).trace) for _ in range(2)}
    assert len(digests) == 1
