"""The backend `vllm` without vLLM: what is refused, and what is made of what a scheduler writes down."""

import copy
import json
from pathlib import Path

import pytest

from semtrace.engine.document import parse_engine, settings_of
from semtrace.engine.scheduler import Scheduler
from semtrace.errors import DocumentError, ReplayError, UsageError
from semtrace.graph.plan import dag
from semtrace.live.vllm import backend as module
from semtrace.live.vllm.engine import FINISH, Output, name_of, need_vllm
from semtrace.live.vllm.model import vocabulary_size
from semtrace.live.vllm.settings import VllmSettings, engine_arguments, unmapped
from semtrace.measure.audit import audit
from semtrace.records.enums import BlockAction
from semtrace.replay import run
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import detail_digest, show, work_digest
from support.graphs import graph
from support.vllm_work import ENGINE, IDS, agents_trace

DETAIL = ("steps", "step_runs", "blocks")


class Stand:
    """Our own scheduler in vLLM's place: what it does is written down as vLLM's recording scheduler does it, and it gives what it is told to."""

    lock = "logits_processor"
    version = "of no release"
    block_bytes = 1

    def __init__(self, settings, engine, *, locked) -> None:
        del settings
        self.scheduler = Scheduler(engine.scheduler, engine.blocks, engine.block_size)
        self.size, self.locked, self.known = engine.block_size, locked, {}
        self.records, self.sent, self.numbers, self.closed = [], {}, {}, False

    def add(self, request, sent):
        assert len(sent.prompt) == request.prompt_tokens
        assert (sent.output is not None) == self.locked
        output = sent.output or [0] * request.max_tokens
        tokens, chain, keys = [*sent.prompt, *output], sent.salt, []
        for start in range(0, len(tokens) - self.size + 1, self.size):
            chain = self.known.setdefault((chain, tuple(tokens[start : start + self.size])), len(self.known))
            keys.append(chain)
        mine = type(request)(
            request.id, request.prompt_tokens, request.max_tokens, keys, request.priority, request.arrival
        )
        self.numbers[mine.id] = len(self.numbers)
        self.sent[mine.id] = (output, sent.stops)
        self.records.append({"kind": "request", "n": self.numbers[mine.id], "id": name_of(request)})
        self.scheduler.add(mine)

    def step(self):
        step = self.scheduler.schedule()
        entries = [
            [self.numbers[each.request.id], each.kind, each.computed, each.tokens] for each in step.entries
        ]
        preempted = [self.numbers[each.id] for each in step.preempted]
        free = self.scheduler.pool.free_count
        self.records.append(
            {
                "kind": "step",
                "entries": entries,
                "preempted": preempted,
                "moves": self.moves(),
                "free_blocks": free,
            }
        )
        if not entries:
            return {}
        before = {each.request.id: each.request.outputs for each in step.entries}
        ended = self.scheduler.update(step)
        yielded = [
            [self.numbers[each.request.id], each.request.outputs - before[each.request.id]]
            for each in step.entries
            if each.request.outputs > before[each.request.id]
        ]
        done = [[self.numbers[each.id], "length"] for each in ended]
        self.records.append({"kind": "computed", "yielded": yielded, "ended": done, "moves": self.moves()})
        return {
            name_of(each): Output(
                self.sent[each.id][0], FINISH["stop" if self.sent[each.id][1] else "length"]
            )
            for each in ended
        }

    def moves(self):
        names = {
            BlockAction.ALLOCATE: "allocate",
            BlockAction.HIT: "hit",
            BlockAction.FREE: "free",
            BlockAction.EVICT: "evict",
        }
        made = [
            [
                names[move.action],
                self.numbers[move.request.id],
                move.position,
                [[block, 1] for block in move.blocks],
            ]
            for move in self.scheduler.moves
        ]
        self.scheduler.moves.clear()
        return made

    def choices(self):
        return None

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def trace():
    return agents_trace(4, tasks=2)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": IDS}))
    return str(tmp_path)


def replay(trace, backend, settings, **scenario):
    whole = {"backend": {"name": backend, "settings": settings}, **scenario}
    plan = dag(show(work_digest(trace)))
    return run.replay(trace, plan, Scenario.parse(whole, path="scenario"), detail=DETAIL)


@pytest.mark.parametrize("order", ["fcfs", "plas"])
@pytest.mark.parametrize("inputs", ["token_ids", "synthetic"])
def test_bookkeeping_is_that_of_the_engine(trace, folder, monkeypatch, order, inputs):
    """ST-VLM-006 and ST-VLM-007: a scheduler that does the same leaves the same."""
    monkeypatch.setattr(module, "need_vllm", lambda: None)
    monkeypatch.setattr(module, "Vllm", Stand)
    engine = copy.deepcopy(ENGINE)
    engine["scheduler"]["order"] = order
    settings = {"model": folder, "engine": engine, "inputs": inputs}
    made = replay(trace, "vllm", settings, mode="token_locked", copies=2)
    ours = replay(trace, "engine", engine, copies=2)
    for table in DETAIL:
        assert detail_digest(made, table) == detail_digest(ours, table), table
    assert audit(trace, made).as_dict()["findings"] == []
    assert made.header.environment["lock"] == "logits_processor"
    assert made.header.backend.name == "vllm"
    assert made.header.backend.settings["engine"]["blocks"] == ENGINE["blocks"]
    preempted = made.events.ints("preemptions")
    assert int(preempted[preempted > 0].sum()) > 10


def test_free_tokens_are_not_held_to_what_was_recorded(trace, folder, monkeypatch):
    monkeypatch.setattr(module, "need_vllm", lambda: None)
    monkeypatch.setattr(module, "Vllm", Stand)
    made = replay(trace, "vllm", {"model": folder, "engine": ENGINE}, mode="length_locked")
    report = audit(trace, made)
    assert report.as_dict()["findings"] == []
    assert report.rule("ST-AUD-078").not_judged  # what blocks hold of outputs is the model's choice


def test_without_vllm_the_extra_is_named(trace, folder, tmp_path, monkeypatch):
    """ST-VLM-001."""
    with pytest.raises(UsageError) as error:
        need_vllm()
    assert "semtrace[vllm]" in error.value.hint
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)  # a folder of that name is none
    with pytest.raises(UsageError, match="not installed"):
        replay(trace, "vllm", {"model": folder, "engine": ENGINE})


def test_each_member_without_a_match_is_named(folder):
    """ST-VLM-003."""
    scheduler = {"batching": "static", "threshold_rule": "0.30", "async_scheduling": True}
    asked = {
        **ENGINE, "servers": 2, "policy": {"name": "keep"}, "scheduler": {**ENGINE["scheduler"], **scheduler},
        "tiers": {"host": {"blocks": 4}}, "links": {"host": {"out_bytes_per_s": 9, "in_bytes_per_s": 9}},
    }  # fmt: skip
    document = parse_engine(asked, path="engine")
    options = {"block_size": 16, "scheduler_cls": "x", "tensor_parallel_size": 2}
    settings = VllmSettings.parse({"model": folder, "engine": asked, "options": options}, path="settings")
    findings = list(unmapped(settings, document, settings_of(document)))
    assert {each.column for each in findings} == {
        "engine.servers", "engine.scheduler.batching", "engine.scheduler.threshold_rule",
        "engine.scheduler.async_scheduling", "engine.policy", "engine.tiers", "engine.links",
        "options.block_size", "options.scheduler_cls",
    }  # fmt: skip
    assert all(each.hint for each in findings)


def test_all_numbers_of_the_document_are_given():
    """ST-VLM-002."""
    document = parse_engine({**ENGINE, "scheduler": {**ENGINE["scheduler"], "watermark": 0.1}}, path="engine")
    engine = settings_of(document)
    options = {"tensor_parallel_size": 2}
    settings = VllmSettings.parse({"model": "m", "engine": ENGINE, "options": options}, path="settings")
    made = engine_arguments(settings, engine)
    assert int(made["watermark"] * engine.blocks) == engine.scheduler.watermark_blocks == 2
    assert made["num_gpu_blocks_override"] == ENGINE["blocks"]
    assert made["long_prefill_token_threshold"] == 80
    assert made["async_scheduling"] is False
    assert made["tensor_parallel_size"] == 2


def test_what_cannot_be_generated_is_refused(folder, monkeypatch):
    """ST-VLM-005."""
    monkeypatch.setattr(module, "need_vllm", lambda: None)
    operations = [
        {"name": "a", "kind": "embed", "prompt": 4},
        {"name": "b", "kind": "llm", "prompt": 4, "output": 0},
        {"name": "c", "kind": "llm", "prompt": 4, "output": 1},
    ]
    made = graph({"operations": operations})
    with pytest.raises(ReplayError) as error:
        replay(made.trace, "vllm", {"model": folder, "engine": ENGINE})
    assert "operation 0 is no generation" in str(error.value)
    assert "operation 1 has no output tokens" in str(error.value)
    assert "operation 2" not in str(error.value)


def test_ids_that_the_model_does_not_have_are_refused(trace, folder, monkeypatch):
    monkeypatch.setattr(module, "need_vllm", lambda: None)
    Path(folder, "config.json").write_text(json.dumps({"vocab_size": 100}))
    with pytest.raises(ReplayError, match="ST-INP-004"):
        replay(trace, "vllm", {"model": folder, "engine": ENGINE, "inputs": "token_ids"}, mode="token_locked")


def test_settings_that_are_wrong_are_told(trace, folder, monkeypatch):
    monkeypatch.setattr(module, "need_vllm", lambda: None)
    with pytest.raises(DocumentError, match="dtype"):
        replay(trace, "vllm", {"model": folder, "engine": ENGINE, "dtype": "int8"})
    with pytest.raises(UsageError, match="no model that vLLM reads"):
        replay(trace, "vllm", {"model": f"{folder}/none", "engine": ENGINE})


def test_vocabulary_of_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 77}}))
    assert vocabulary_size(str(tmp_path)) == 77
    (tmp_path / "config.json").write_text("{}")
    assert vocabulary_size(str(tmp_path)) is None
