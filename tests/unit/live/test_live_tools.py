"""The backend http: messages that offer tools, on servers that take them, that take them uncalled, and that refuse them."""

import pytest

from semtrace.errors import ReplayError
from semtrace.records.enums import EventOutcome
from support.chat_traces import TOOLS, chat_trace
from support.live_runs import good, requests_of, rows, run
from support.raw_server import as_json, plain, raw_server


def server_that(takes):
    """A server of chat alone that takes a request with tools if `takes` says so of its body."""

    def answer(asked):
        if asked.head.startswith("GET /v1/models "):
            return [as_json({"data": [{"id": "m"}]})]
        if not asked.head.startswith("POST /v1/chat/completions"):
            return [plain("404 Not Found", b"")]
        if "tools" in asked.json and not takes(asked.json):
            return [as_json({"error": {"message": "needs a parser of calls"}}, "400 Bad Request")]
        return good(asked)

    return raw_server(answer)


@pytest.mark.parametrize("uncalled", [False, True])
def test_tools_are_sent_in_the_way_that_the_server_takes(uncalled):
    """ST-INP-005."""
    takes = (lambda body: body.get("tool_choice") == "none") if uncalled else (lambda _: True)
    with server_that(takes) as server:
        execution = run(chat_trace(), server.url, settings={"inputs": "text"}, warm_up=0)
        first, second = (asked.json for asked in requests_of(server))
    assert rows(execution, "outcome") == [(EventOutcome.OK,)] * 2
    assert first["tools"] == TOOLS
    assert first.get("tool_choice") == ("none" if uncalled else None)
    assert not {"tools", "tool_choice"} & set(second)


def test_tools_that_are_refused_are_a_finding_before_the_run():
    """ST-LIV-025."""
    with server_that(lambda _: False) as server:
        with pytest.raises(ReplayError) as caught:
            run(chat_trace(), server.url, settings={"inputs": "text"})
        assert requests_of(server) == []
    error = caught.value
    assert (error.requirement, error.code) == ("ST-LIV-025", "replay.refused")
    assert "operations.kind[0]: operation 0 offers tools, which the server refuses" in str(error)
    assert "needs a parser of calls" in str(error)
