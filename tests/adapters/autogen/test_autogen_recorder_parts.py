"""The live recorder without AutoGen: what it writes, that it disturbs nobody, and what it does when it fails."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from semtrace.errors import UsageError
from semtrace.records.enums import Outcome
from semtrace.stream import writer
from semtrace.stream.capture import read_capture
from semtrace.stream.seal import seal
from semtrace_adapters.autogen import hooks
from semtrace_adapters.autogen.handler import EVENT_LOGGERS, RETRY_LOGGER
from semtrace_adapters.autogen.otlp import span_as_otlp
from semtrace_adapters.autogen.recorder import (
    AutoGenRecording,
    RecordingHandler,
    RecordingSpanProcessor,
    record_autogen,
)
from semtrace_adapters.autogen.spans import parse_spans

ROOT = Path(__file__).parents[3]
GRAPHFLOW = ROOT / "examples/autogen/graphflow/events.jsonl"
events = logging.getLogger(EVENT_LOGGERS[0])


class Event:
    """An event as AutoGen logs it: its text is JSON."""

    def __init__(self, values: object) -> None:
        self.values = values

    def __str__(self) -> str:
        return json.dumps(self.values)


def lines(path, name="events.jsonl"):
    return [json.loads(source.data) for source in read_capture(path).sources if source.name == name]


def test_events_are_kept_as_they_were_logged(tmp_path):
    path = tmp_path / "run.stsl"
    with record_autogen(path, spans=False) as recording:
        events.info(Event({"type": "LLMCall", "text": "größer"}))
        logging.getLogger(EVENT_LOGGERS[1]).debug("a plain %s", "line")
        logging.getLogger(RETRY_LOGGER).info("Retrying request to %s", "/chat")
        logging.getLogger(RETRY_LOGGER).debug("not this one")
    got = lines(path)
    assert [line.get("event", line.get("message")) for line in got] == [
        {"type": "LLMCall", "text": "größer"}, "a plain line", "Retrying request to /chat",
    ]  # fmt: skip
    assert all(line["time_unix_ns"] > 10**18 for line in got)
    assert (recording.records, recording.lost) == (3, 0)
    assert recording.spent_ns > 0
    assert read_capture(path).whole
    events.info(Event({"type": "after"}))
    assert len(lines(path)) == 3


def test_a_lone_surrogate_comes_through(tmp_path):
    with record_autogen(tmp_path / "s", spans=False):
        events.info(Event({"type": "x", "text": "\ud800"}))
    assert lines(tmp_path / "s")[0]["event"]["text"] == "\ud800"


def test_nobody_else_sees_more_than_before(tmp_path):
    """Events go to the recording; the application's own handlers get what they got without it."""
    seen = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    own, root = Own(), logging.getLogger()
    root.addHandler(own)
    before = {name: logging.getLogger(name).level for name in (*EVENT_LOGGERS, RETRY_LOGGER)}
    try:
        events.setLevel(logging.WARNING)
        with record_autogen(tmp_path / "s", spans=False):
            events.info("quiet")
            events.warning("loud")
        assert seen == ["loud"]
        assert [line["message"] for line in lines(tmp_path / "s")] == ["quiet", "loud"]
        assert events.level == logging.WARNING
        assert events.filters == []
        with record_autogen(tmp_path / "t", spans=False):
            events.setLevel(logging.ERROR)  # what the application sets meanwhile stays
        assert events.level == logging.ERROR
    finally:
        events.setLevel(before[EVENT_LOGGERS[0]])
        root.removeHandler(own)
    assert {name: logging.getLogger(name).level for name in before} == before


def test_recordings_can_be_nested_and_follow_each_other(tmp_path):
    with record_autogen(tmp_path / "a", spans=False):
        events.info("one")
        with record_autogen(tmp_path / "b", spans=False):
            events.info("two")
    with record_autogen(tmp_path / "c", spans=False):
        events.info("three")
    assert [[line["message"] for line in lines(tmp_path / name)] for name in "abc"] == [
        ["one", "two"], ["two"], ["three"],
    ]  # fmt: skip


def test_a_path_that_cannot_be_written_is_an_error_before_the_block(tmp_path):
    (tmp_path / "s").touch()
    for path in (tmp_path / "s", tmp_path / "no" / "s"):
        with pytest.raises(UsageError), record_autogen(path):
            pytest.fail("the block must not begin")
    assert events.filters == []


def test_an_error_of_the_application_closes_the_recording_and_goes_on(tmp_path):
    def fails():
        with record_autogen(tmp_path / "s", spans=False):
            events.info("one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert read_capture(tmp_path / "s").closed


def test_an_event_that_cannot_be_recorded_is_counted_and_said_once(tmp_path, caplog):
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with (
        caplog.at_level(logging.WARNING, "semtrace.recorder"),
        record_autogen(tmp_path / "s", spans=False) as recording,
    ):
        events.info("good")
        events.info(Bad())
        events.info(Bad())
        events.info("good")
    assert (recording.records, recording.lost) == (2, 2)
    capture = read_capture(tmp_path / "s")
    assert capture.gaps == {"events.jsonl: RuntimeError: no text": 2}
    assert [r.getMessage() for r in caplog.records if r.name == "semtrace.recorder"] == [
        f"{tmp_path / 's'}: 2 of 4 records could not be written: RuntimeError: no text"
    ]


def test_on_a_full_disk_the_application_goes_on(tmp_path, monkeypatch, caplog):
    """ST-STR-026."""
    real, room = os.write, [10**6]

    def write(descriptor, data):
        if room[0] < len(data):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    with (
        caplog.at_level(logging.WARNING, "semtrace.recorder"),
        record_autogen(tmp_path / "s", spans=False) as recording,
    ):
        events.info("before")
        monkeypatch.setattr(writer.os, "write", write)
        room[0] = 0
        for _ in range(5):
            events.info("lost")
        room[0] = 10**6
        events.info("after")
    assert (recording.records, recording.lost) == (2, 5)
    assert [line["message"] for line in lines(tmp_path / "s")] == ["before", "after"]
    assert read_capture(tmp_path / "s").gaps == {"No space left on device": 5}
    assert len([r for r in caplog.records if r.name == "semtrace.recorder"]) == 1


def test_a_recording_of_nothing_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "semtrace.recorder"), record_autogen(tmp_path / "s", spans=False):
        pass
    assert "nothing was recorded" in caplog.text


# -- spans ----------------------------------------------------------------------------------------------------------


def context(number):
    return SimpleNamespace(trace_id=0xABC, span_id=number, is_valid=True)


def span(number, *, ended=True, **changes: object):
    made = {
        "name": f"autogen process {number}",
        "get_span_context": lambda: context(number),
        "parent": context(1),
        "kind": SimpleNamespace(value=0),
        "start_time": 1_700_000_000_123_456_789,
        "end_time": 1_700_000_001_000_000_001 if ended else None,
        "attributes": {"a": "x", "b": True, "c": 2**60, "d": 0.5, "e": ("p", "q"), "f": b"\0", "g": {"h": 1}},
        "links": [SimpleNamespace(context=context(5), attributes={"l": 1})],
        "events": [SimpleNamespace(name="first", timestamp=1_700_000_000_500_000_007, attributes={})],
        "status": SimpleNamespace(status_code=SimpleNamespace(value=2), description="went wrong"),
        "dropped_attributes": 3,
        "instrumentation_scope": SimpleNamespace(name="autogen", version=None),
    }
    return SimpleNamespace(**{**made, **changes})


def test_a_span_in_otlp_json_is_the_span_to_the_nanosecond():
    document = json.loads(json.dumps(span_as_otlp(span(7))))
    (got,) = parse_spans(document)
    assert (got.span_id, got.trace_id, got.parent_id) == ("0" * 15 + "7", "0" * 29 + "abc", "0" * 15 + "1")
    assert (got.start_ns, got.end_ns) == (1_700_000_000_123_456_789, 1_700_000_001_000_000_001)
    assert got.attributes == {
        "a": "x", "b": True, "c": 2**60, "d": 0.5, "e": ["p", "q"], "f": "AA==", "g": {"h": 1},
    }  # fmt: skip
    assert got.links == ("0" * 15 + "5",)
    assert got.events == (("first", 1_700_000_000_500_000_007),)
    assert got.error == "went wrong"
    whole = document["resourceSpans"][0]["scopeSpans"][0]
    assert whole["scope"] == {"name": "autogen", "version": ""}
    assert whole["spans"][0]["droppedAttributesCount"] == 3
    assert whole["spans"][0]["kind"] == 1
    (got,) = parse_spans(span_as_otlp(span(7, ended=False, parent=None, links=[], events=[])))
    assert (got.end_ns, got.parent_id) == (None, None)


def test_a_span_is_kept_once_as_it_ended_or_as_it_began(tmp_path):
    recording = AutoGenRecording(tmp_path / "s")
    processor = RecordingSpanProcessor(recording)
    processor.on_start(span(1, ended=False))
    processor.on_start(span(2, ended=False))
    processor._on_ending(span(2))
    processor.on_end(span(2))
    assert processor.force_flush()
    processor.shutdown()
    recording.close()
    recording.close()
    found = [next(parse_spans(line)) for line in lines(tmp_path / "s", "spans.jsonl")]
    assert [(got.span_id[-1], got.end_ns is None) for got in found] == [("1", True), ("2", False)]


def test_a_handler_can_be_set_up_by_the_application_itself(tmp_path):
    recording = AutoGenRecording(tmp_path / "s")
    logger = logging.getLogger("of.the.application")
    handler = RecordingHandler(recording)
    logger.addHandler(handler)
    logger.warning("kept")
    logger.removeHandler(handler)
    recording.close()
    assert [line["message"] for line in lines(tmp_path / "s")] == ["kept"]


# -- teams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def teams(monkeypatch):
    """A stand-in for AutoGen's module of teams."""

    class BaseGroupChat:
        def __init__(self, config: object) -> None:
            self.config = config

        def dump_component(self):
            if self.config is None:
                raise NotImplementedError("a tool that has no config")
            return SimpleNamespace(model_dump=lambda **_mode: self.config)

        def run_stream(self, *, task):
            """Run."""
            return iter([task])

    module = types.ModuleType("autogen_agentchat.teams")
    module.BaseGroupChat = BaseGroupChat
    monkeypatch.setitem(sys.modules, "autogen_agentchat", types.ModuleType("autogen_agentchat"))
    monkeypatch.setitem(sys.modules, "autogen_agentchat.teams", module)
    return module


def configs(path):
    return [
        json.loads(source.data) for source in read_capture(path).sources if source.name.startswith("config-")
    ]


def test_configs_of_teams_that_run_are_recorded_once(tmp_path, teams):
    inner = {"provider": "autogen.Swarm", "config": {"b": 1, "a": 2}}
    outer = {"provider": "autogen.GraphFlow", "config": {"participants": [inner]}}
    original = teams.BaseGroupChat.run_stream
    with record_autogen(tmp_path / "s", spans=False):
        assert list(teams.BaseGroupChat(outer).run_stream(task="x")) == ["x"]
        list(teams.BaseGroupChat(outer).run_stream(task="again"))
        list(teams.BaseGroupChat(inner).run_stream(task="inside of the other"))
        list(teams.BaseGroupChat({"provider": "more"}).run_stream(task="y"))
        assert teams.BaseGroupChat.run_stream.__doc__ == original.__doc__
    assert teams.BaseGroupChat.run_stream is original
    assert configs(tmp_path / "s") == [outer, {"provider": "more"}]
    names = {source.name for source in read_capture(tmp_path / "s").sources}
    assert names == {"config-0.json", "config-1.json"}, "each is a document of its own"


def test_a_team_without_a_config_runs_all_the_same(tmp_path, teams, caplog):
    with record_autogen(tmp_path / "s", spans=False) as recording:
        assert list(teams.BaseGroupChat(None).run_stream(task="x")) == ["x"]
    assert recording.lost == 1
    assert "a tool that has no config" in caplog.text


def test_another_autogen_than_the_one_known_is_noted(tmp_path, teams, caplog):
    del teams.BaseGroupChat
    with record_autogen(tmp_path / "s", spans=False) as recording:
        pass
    assert recording.lost == 1
    assert "configs of teams" in caplog.text


def test_tracing_that_fails_is_noted(tmp_path, monkeypatch, caplog):
    def fails(_note):
        raise RuntimeError("broken tracing")

    monkeypatch.setattr(hooks, "_provider", fails)
    with record_autogen(tmp_path / "s"):
        events.info("goes on")
    assert "broken tracing" in caplog.text
    assert [line["message"] for line in lines(tmp_path / "s")] == ["goes on"]


# -- the standard library only, killed, forked ------------------------------------------------------------------------

PRELUDE = """
import json, logging, os, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/adapters"]
from semtrace_adapters.autogen.recorder import record_autogen

class Event:
    def __init__(self, text):
        self.text = text
    def __str__(self):
        return self.text

logger = logging.getLogger("autogen_core.events")
lines = [json.dumps(json.loads(line)["event"]) for line in open(sys.argv[3]) if '"autogen_core.events"' in line]
"""


def _run(code, *arguments: object):
    words = [sys.executable, "-S", "-E", "-c", PRELUDE + code, ROOT, *arguments]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def test_recording_needs_nothing_installed(tmp_path):
    """No package is there, so no Protobuf: AutoGen pins a version that semtrace's other parts cannot use."""
    code = """
with record_autogen(sys.argv[2]) as recording:
    for line in lines:
        logger.info(Event(line))
assert "google" not in sys.modules
print(recording.records)
"""
    done = _run(code, tmp_path / "run.stsl", GRAPHFLOW)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
    sealed = seal([tmp_path / "run.stsl"])
    assert sealed.trace.operations.rows == 15
    assert [(source.adapter, source.name) for source in sealed.info.sources] == [("autogen", "run.stsl")]


def test_the_result_of_a_run_says_its_outcome_and_changes_nothing_else(tmp_path):
    stream = GRAPHFLOW.with_name("stream.jsonl").read_text(encoding="utf-8").splitlines()
    result = json.loads(stream[-1])
    held = next(
        value for value in [result, *result.values()] if isinstance(value, dict) and "stop_reason" in value
    )
    lines = [
        json.loads(line)["event"]
        for line in GRAPHFLOW.read_text(encoding="utf-8").splitlines()
        if '"autogen_core.events"' in line
    ]
    made = []
    for name in ("with", "without"):
        with record_autogen(tmp_path / name, spans=False) as recording:
            for line in lines:
                events.info(Event(line))
            if name == "with":
                recording.result(SimpleNamespace(model_dump=lambda mode: held if mode == "json" else None))
        assert recording.lost == 0
        made.append(seal([tmp_path / name]))
    told, untold = (sealed.trace for sealed in made)
    assert list(told.tasks.ints("outcome")) == [Outcome.SUCCESS]
    assert list(untold.tasks.ints("outcome")) == [Outcome.UNKNOWN]
    for table in ("segments", "edges"):  # times are those of the recording, and differ
        assert told[table].data.select([0, 1]).equals(untold[table].data.select([0, 1]))
    assert told.operations.strings("name") == untold.operations.strings("name")


def test_a_recording_that_is_killed_is_sealed_as_far_as_it_went(tmp_path):
    code = """
with record_autogen(sys.argv[2]):
    for line in lines[:60]:
        logger.info(Event(line))
    os.kill(os.getpid(), 9)
"""
    done = _run(code, tmp_path / "run.stsl", GRAPHFLOW)
    assert done.returncode == -9
    sealed = seal([tmp_path / "run.stsl"])
    assert 3 < sealed.trace.operations.rows < 15
    assert "stream.open" in {loss.code for loss in sealed.info.loss}


def test_a_forked_process_records_beside(tmp_path):
    code = """
with record_autogen(sys.argv[2]) as recording:
    half = len(lines) // 2
    for line in lines[:half]:
        logger.info(Event(line))
    child = os.fork()
    if child == 0:
        for line in lines[half:]:
            logger.info(Event(line))
        print(recording.paths[0], flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    done = _run(code, tmp_path / "run.stsl", GRAPHFLOW)
    assert done.returncode == 0, done.stderr
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 2
    assert str(paths[0]) == done.stdout.strip()
    assert seal(paths).trace.operations.rows == 15


def test_at_a_real_limit_the_application_goes_on_and_hears_of_it_once(tmp_path):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
with record_autogen(sys.argv[2]) as recording:
    for line in lines:
        logger.info(Event(line))
print("the application ended", recording.records, recording.lost)
"""
    done = _run(code, tmp_path / "run.stsl", GRAPHFLOW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the application ended")
    kept, lost = map(int, done.stdout.split()[-2:])
    assert kept > 3
    assert lost > 3
    assert len(done.stderr.strip().splitlines()) in {1, 2}, done.stderr
    assert f"{lost} of {kept + lost} records could not be written" in done.stderr
    capture = read_capture(tmp_path / "run.stsl")
    assert len(capture.sources) == kept
    assert capture.torn is None
