"""What a trace cannot say is refused by name: several answers to one request, joins on any (ST-PROD-007)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from autogen_logs import Log, conversation
from autogen_runs import EXAMPLES, load
from semtrace.errors import FormatError
from semtrace.records.enums import EdgeKind
from semtrace_adapters.autogen.config import read_config
from semtrace_adapters.autogen.read_spans import read_spans
from semtrace_adapters.autogen.responses import answer_of
from semtrace_adapters.autogen.spans import Span, SpanTree
from semtrace_adapters.base import choose
from semtrace_adapters.metagpt.config import read_config as read_metagpt


def choice(at):
    return {"index": at, "finish_reason": "stop", "message": {"role": "assistant", "content": f"answer {at}"}}


def test_a_response_with_several_answers_is_refused(tmp_path):
    log = Log()
    log.start("Talk.")
    log.request("ann")
    log.call(
        "ann", [{"role": "user", "content": "Talk."}], response={"id": "x", "choices": [choice(0), choice(1)]}
    )
    log.respond("ann", "answer 0")
    log.end()
    with pytest.raises(FormatError, match="2 answers") as caught:
        load(log.write(tmp_path / "events.jsonl"))
    assert caught.value.requirement == "ST-PROD-007"
    assert "events.jsonl:" in str(caught.value)
    assert answer_of({"choices": [choice(0)]}, "x") == ({"content": "answer 0"}, "stop")


@pytest.mark.parametrize(
    "attributes",
    [
        {"input.value": json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 2})},
        {"gen_ai.request.choice.count": 2},
        {
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.1.message.role": "assistant",
        },
    ],
)
def test_a_span_of_several_answers_is_refused(attributes):
    kind = {"openinference.span.kind": "LLM"}
    span = Span("1", "2", None, "ChatCompletion", 0, 1, {**attributes, **kind})
    with pytest.raises(FormatError, match="2 answers"):
        read_spans(SpanTree({"1": span}))


def graph_config(**node: object):
    config = json.loads((EXAMPLES / "graphflow" / "config.json").read_text(encoding="utf-8"))
    nodes = config["config"]["graph"]["nodes"]
    into = [edge["target"] for spec in nodes.values() for edge in spec["edges"]]
    join = next(name for name in into if into.count(name) > 1)
    nodes[join].update(node)
    return config, join


def client(config, **settings: object):
    config["config"]["participants"][0]["config"]["model_client"]["config"].update(settings)
    return config


def test_a_config_that_asks_for_several_answers_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(client(graph_config()[0], n=3)), encoding="utf-8")
    (tmp_path / "events.jsonl").write_bytes((EXAMPLES / "graphflow" / "events.jsonl").read_bytes())
    with pytest.raises(FormatError, match="3 answers"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(client(graph_config()[0], n=1)), encoding="utf-8")
    assert load(tmp_path).llm


@pytest.mark.parametrize("how", ["activation", "condition", "group"])
def test_a_join_on_any_is_known_by_each_way_to_say_it(how):
    config, join = graph_config()
    assert read_config(config).any_joins == set()
    edges = [
        e
        for spec in config["config"]["graph"]["nodes"].values()
        for e in spec["edges"]
        if e["target"] == join
    ]
    if how == "activation":
        config["config"]["graph"]["nodes"][join]["activation"] = "any"
    elif how == "condition":
        edges[0]["activation_condition"] = "any"
    else:
        edges[0]["activation_group"] = "another"
    assert read_config(config).any_joins == {join}


def test_a_join_on_any_waits_for_the_round_that_messages_show_and_the_report_says_so(tmp_path):
    config, join = graph_config(activation="any")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "events.jsonl").write_bytes((EXAMPLES / "graphflow" / "events.jsonl").read_bytes())
    run = load(tmp_path)
    assert run.losses["graph.any"]
    control = run.evidence(EdgeKind.CONTROL)
    assert len([edge for edge in control if edge[1] == join]) > 1


def test_a_join_on_any_is_refused_where_nothing_shows_what_was_waited_for(tmp_path):
    config, join = graph_config(activation="any")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "stream.jsonl").write_bytes((EXAMPLES / "graphflow" / "stream.jsonl").read_bytes())
    with pytest.raises(FormatError, match=f"agent {join} goes on after any") as caught:
        load(tmp_path)
    assert caught.value.requirement == "ST-PROD-007"
    log = conversation(2)
    log.lines = [line for line in log.lines if line[1]["type"] == "LLMCall"]
    names = {
        "ann": {"edges": [{"target": "bob"}]},
        "cid": {"edges": [{"target": "bob"}]},
        "bob": {"activation": "any"},
    }
    participants = [{"provider": "x.AssistantAgent", "config": {"name": name}} for name in names]
    team = {"provider": "x.GraphFlow", "component_type": "team",
            "config": {"name": "g", "participants": participants, "graph": {"nodes": names}}}  # fmt: skip
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "config.json").write_text(json.dumps(team), encoding="utf-8")
    log.write(tmp_path / "calls" / "events.jsonl")
    with pytest.raises(FormatError, match="agent bob goes on after any"):
        load(tmp_path / "calls")


@pytest.mark.parametrize("member", ["n", "best_of"])
def test_a_metagpt_configuration_that_asks_for_several_answers_is_refused(tmp_path, member):
    path = tmp_path / "config2.yaml"
    path.write_text(f"llm:\n  model: m\n  {member}: 2\n", encoding="utf-8")
    with pytest.raises(FormatError, match="2 answers") as caught:
        read_metagpt(path)
    assert f"config2.yaml, llm.{member}" in str(caught.value)
    path.write_text(f"llm:\n  model: m\n  {member}: 1\n", encoding="utf-8")
    assert read_metagpt(path).model == "m"


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names of files are text there")
def test_a_file_whose_name_is_no_text_is_named_as_far_as_it_goes(tmp_path):
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/ev\xff.jsonl"))).write_text(
        '{"type": "LLMCall"}\n', encoding="utf-8"
    )
    with pytest.raises(FormatError, match="not UTF-8") as caught:
        choose([tmp_path])
    assert r"ev\xff.jsonl" in str(caught.value)
    str(caught.value).encode()
