"""The doctor: what it finds of servers of many kinds, in bounded time, and that nothing a server does upsets it."""

import contextlib
import json
import subprocess
import sys

import pytest

from semtrace.live.doctor import PROBES, examine
from semtrace.live.examination import EVIDENCE_CHARACTERS, Probe
from semtrace.live.settings import HttpSettings, Key
from servers.launch import start_server
from support.raw_server import as_json, plain, raw_server

SECOND_NS = 1_000_000_000


def found(examination):
    return {name: probe.found for name, probe in examination.probes.items()}


def look(url, *, key=None, only=None, timeout_ns=20 * SECOND_NS, **settings):
    examination = examine(HttpSettings(url=url, **settings), key, only=only, timeout_ns=timeout_ns)
    assert all(isinstance(probe, Probe) and probe.evidence for probe in examination.probes.values())
    assert json.loads(json.dumps(examination.as_json())) == examination.as_json()
    return examination


@contextlib.contextmanager
def witness(folder, **script):
    file = folder / "script.json"
    file.write_text(json.dumps({"service": {"first_token_ns": 1000, "token_ns": 1000}, **script}))
    command = [sys.executable, "-m", "semtrace_conformance.witness", "--script", str(file)]
    command += ["--record", str(folder / "record.jsonl"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield f"http://127.0.0.1:{json.loads(child.stdout.readline())['port']}"
        finally:
            child.terminate()
            child.communicate()


def test_a_server_that_can_be_told_everything(tmp_path):
    with witness(tmp_path, models=["tiny"], context=4096, vocabulary=20_011) as url:
        seen = look(url)
    assert list(seen.probes) == list(PROBES)
    yes = {name for name, value in found(seen).items() if value == "yes"}
    assert yes >= {
        "reachable", "models", "token_prompts", "chat", "stream", "stream_usage", "token_ids_back", "min_tokens", "length",
        "logits_processor", "request_id", "tokenize", "embeddings", "vocabulary",
    }  # fmt: skip
    assert (seen.models, seen.model, seen.max_model_len, seen.vocabulary_size) == (
        ["tiny"],
        "tiny",
        4096,
        20_011,
    )
    assert seen.locks() == ["logits_processor"]
    assert seen.inputs() == ["token_ids", "synthetic", "text"]
    assert set(seen.modes()) == {"length_locked", "token_locked"}
    assert seen.probes["trace_replay"].status == 404


def test_servers_that_can_do_less(tmp_path):
    with witness(tmp_path, token_ids=False) as url:
        seen = look(url)
    assert seen.cannot("token_prompts")
    assert seen.inputs() == ["text"]
    assert seen.probes["vocabulary"].found == "unknown"
    other = tmp_path / "other"
    other.mkdir()
    with witness(other, token_lock=False, length_lock=False, usage=False, tokenize=False) as url:
        seen = look(url)
    assert seen.cannot("logits_processor")
    assert seen.locks() == []
    assert (seen.refuses("min_tokens"), seen.refuses("ignore_eos")) == (True, True)
    assert seen.cannot("length")
    assert "end early" in seen.modes()["length_locked"]
    assert seen.probes["token_prompts"].found == "unknown"  # they are taken, and not counted
    assert (seen.cannot("tokenize"), seen.cannot("stream_usage")) == (True, True)
    assert "token_locked" not in seen.modes()


def test_a_server_of_chat_messages_alone(tmp_path):
    with start_server(tmp_path / "log") as server:
        seen = look(server.url)
    assert seen.model == "gpt-4o"
    assert seen.inputs() == ["text"]
    assert (seen.can("stream"), seen.can("stream_usage"), seen.cannot("token_ids_back")) == (True, True, True)
    assert seen.cannot("ignore_eos")
    assert not seen.refuses("ignore_eos")
    assert "read over" in seen.probes["ignore_eos"].evidence


@pytest.mark.parametrize("takes", ["tools", "tools that are not called", "no tools"])
def test_tools_in_messages(takes):
    def script(asked):
        if asked.head.startswith("GET"):
            return [as_json({"data": [{"id": "m"}]})]
        body = asked.json
        if "tools" in body and not (
            takes == "tools" or (takes != "no tools" and body.get("tool_choice") == "none")
        ):
            return [as_json({"error": {"message": "auto tool choice requires a parser"}}, "400 Bad Request")]
        return [as_json({"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": 3}})]

    with raw_server(script) as server:
        seen = look(server.url)
    assert (seen.can("tools"), seen.can("tools_uncalled")) == (takes == "tools", takes != "no tools")
    assert seen.cannot("tools") == (takes != "tools")
    assert seen.as_json()["without"] == (
        ["messages that offer tools, sent as text"] if takes == "no tools" else []
    )


def test_only_what_is_wanted_and_what_it_rests_on_is_asked(tmp_path):
    with witness(tmp_path) as url:
        assert set(look(url, only=["min_tokens"]).probes) == {
            "reachable",
            "models",
            "token_prompts",
            "chat",
            "min_tokens",
        }


def test_nothing_there():
    with raw_server(lambda _: []) as server:
        pass
    seen = look(server.url)
    assert set(found(seen)) == set(PROBES)
    assert found(seen).pop("reachable") == "no"
    assert set(found(seen).values()) == {"no", "unknown"}
    assert "connection refused" in seen.probes["reachable"].evidence
    assert seen.modes() == {}


@pytest.mark.parametrize(
    "steps",
    [[b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", *[0.05, b"x"] * 40], ["close"], ["reset"], [b"SSH-2.0-OpenSSH_9.6\r\n", "close"], [b"HTTP/1.1 200 OK\r\nContent-Le", "close"], [b"\x00" * 999], ["hang"]],
)  # fmt: skip
def test_servers_that_are_none_are_seen_to_be_none_and_asked_little(steps):
    with raw_server(lambda _: steps) as server:
        seen = look(server.url, timeout_ns=SECOND_NS // 5)
    assert not seen.can("models")
    assert {value for name, value in found(seen).items() if name != "reachable"} <= {"no", "unknown"}
    assert seen.modes() == {}
    assert len({asked.header("x-request-id") for asked in server.asked}) <= 2  # the rest would be as slow
    assert "not asked" in seen.probes["chat"].evidence


NONSENSE = [
    b"", b"nonsense", b"null", b"[]", b"{}", b"7", b'"x"', b'{"data": 5}', b'{"data": [5, null]}', b'{"data": [{}]}',
    b'{"data": [{"id": 5, "max_model_len": "x"}]}', b'{"choices": [5]}', b'{"choices": [{"token_ids": "x"}]}',
    b'{"choices": [{}], "usage": {"prompt_tokens": "many"}}', b'{"error": {"message": {"a": 1}}}', b'{"version": [1]}',
    b"\xff\xfe\x00", b"[" * 5000, b'{"tokens": {}, "data": {"embedding": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("body", NONSENSE)
@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "500 Internal Server Error", "302 Found"])
def test_nonsense_is_no_ability(body, status):
    fields = ["Content-Type: application/json"]
    with raw_server(lambda _: [plain(status, body, *fields)]) as server:
        seen = look(server.url)
    assert seen.can("reachable")
    abilities = {name for name, value in found(seen).items() if value == "yes"} - {"reachable", "models"}
    assert abilities == set()
    assert seen.modes() == {}


def test_endless_answers_are_bounded():
    steps = [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", *[b"x" * 999_999] * 4, "hang"]
    with raw_server(lambda _: steps) as server:
        seen = look(server.url, only=["models"], timeout_ns=2 * SECOND_NS)
    assert not seen.can("models")


def test_what_a_server_says_is_quoted_short_clean_and_without_the_key():
    message = "you sent sk-secret \x1b[31m\r\n" + "y" * 5000
    with raw_server(lambda _: [as_json({"error": {"message": message}}, "401 Unauthorized")]) as server:
        seen = look(server.url, key=Key("sk-secret"))
    text = json.dumps(seen.as_json())
    assert "secret" not in text
    evidence = seen.probes["models"].evidence
    assert "you sent *** [31m yyy" in evidence
    assert "\x1b" not in evidence
    assert len(evidence) < EVIDENCE_CHARACTERS + 100
    assert {asked.header("authorization") for asked in server.asked} == {"Bearer sk-secret"}


def test_nothing_of_the_key_is_left_where_a_message_is_cut():
    """ST-LIV-032."""
    for before in range(EVIDENCE_CHARACTERS - 12, EVIDENCE_CHARACTERS + 2):
        said = "y" * before + "sk-secret-123 " + "z" * 300
        script = [as_json({"error": {"message": said}}, "401 Unauthorized", f"Server: {said}")]
        with raw_server(lambda _, script=script: script) as server:
            seen = look(server.url, key=Key("sk-secret-123"), only=["models"])
        assert "sk-" not in json.dumps(seen.as_json())


def test_servers_that_know_a_member_refuse_one_of_a_wrong_kind():
    def script(asked):
        if asked.head.startswith("GET"):
            return [as_json({"data": [{"id": "m"}], "version": "1.2"}, "200 OK", "Server: test/1")]
        body = asked.json
        if not isinstance(body.get("ignore_eos", True), bool):
            return [plain("422 Unprocessable Entity", b"")]
        if not isinstance(body.get("nvext", {}), dict):
            return [plain("400 Bad Request", b"")]
        if "min_tokens" in body:
            return [plain("400 Bad Request", b"")]
        if "cache_salt" in body:
            return [plain("503 Service Unavailable", b"")]
        answer = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": len(body.get("prompt", [0]))}}
        return [as_json(answer)]

    with raw_server(script) as server:
        seen = look(server.url)
    assert (seen.can("ignore_eos"), seen.can("annotation")) == (True, True)
    assert seen.refuses("min_tokens")
    assert seen.probes["cache_salt"].found == "unknown"
    assert (seen.server, seen.version) == ("test/1", "1.2")
    assert seen.locks() == ["annotation"]


def test_ids_that_come_by_chance_or_not_at_all_are_no_lock():
    def script(asked):
        if asked.head.startswith("GET"):
            return [as_json({"data": [{"id": "m"}]})]
        body = asked.json
        ids = {"token_ids": [1, 2, 3, 4, 5]} if "vllm_xargs" in body else {}
        if "sampling_params" in body:
            ids = {"token_ids": body["sampling_params"]["trace_decode_token_ids"]}
        return [as_json({"choices": [{"text": "a", **ids}], "usage": {"prompt_tokens": 8}})]

    with raw_server(script) as server:
        seen = look(server.url)
    assert seen.cannot("logits_processor")
    assert seen.locks() == ["trace_replay"]
