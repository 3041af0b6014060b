"""What is found of a real server, which cases can be asked there, and what a certificate says of it. The server is a witness."""

from __future__ import annotations

import json

import pytest
import semtrace_testee

import golden
import live_replayer
import live_variants
from cli.conftest import run as command
from semtrace.errors import UsageError
from semtrace.records.columns import NULL
from semtrace_conformance.certificate import make, verify
from semtrace_conformance.known import verdict
from semtrace_conformance.live.real_server import RealServer, ServerFacts, left_out, look
from semtrace_conformance.reports import html, junit
from semtrace_conformance.runner import Runner, order
from semtrace_conformance.witness import Upstream
from support.served_witness import Serving

ALL = ServerFacts(
    url="http://x", model="m", max_model_len=1 << 20, locks_tokens=True, end_token=True, embeddings=True
)


@pytest.fixture
def serve(tmp_path):
    started = []

    def serve(**script):
        started.append(Serving(tmp_path / f"{len(started)}.jsonl", **script))
        return f"http://127.0.0.1:{started[-1].port}"

    yield serve
    for each in started:
        each.end()


def live_cases(suite):
    return [each for each in suite.cases.values() if each.witness is not None]


def test_what_is_found_of_a_server(suite, serve):
    url = serve(models=["tiny"], context=5000)
    found = look(f"{url}/v1/", None, live_cases(suite))
    assert found.facts == ServerFacts(
        url=f"{url}/v1", model="tiny", max_model_len=5000, locks_tokens=True, end_token=True, embeddings=True
    )
    assert (found.upstream.prefix, found.upstream.models) == ("", None)


@pytest.mark.parametrize(
    ("script", "locks", "ends"),
    [({"token_lock": False}, False, False), ({"eos": 7}, True, False), ({}, True, True)],
)
def test_whether_it_locks_and_ends(suite, serve, script, locks, ends):
    facts = look(serve(**script), None, live_cases(suite)).facts
    assert (facts.locks_tokens, facts.end_token) == (locks, ends)


def test_of_several_models_one_is_chosen(suite, serve):
    url = serve(models=["small", "large"])
    with pytest.raises(UsageError, match="has 2 models"):
        look(url, None, [])
    with pytest.raises(UsageError, match="no model 'other'"):
        look(url, "other", [])
    found = look(url, "large", live_cases(suite))
    assert found.facts.model == "large"
    assert [each["id"] for each in found.upstream.models["data"]] == ["large"]


def test_ids_that_the_server_has_not_are_said(suite, serve):
    with pytest.raises(
        UsageError, match="does not take a prompt of the token id 999, which the cases use: status 400"
    ):
        look(serve(token_ids=False), None, live_cases(suite))


def test_no_case_has_an_id_beyond_its_vocabulary(suite, tmp_path):
    looked = 0
    for case in live_cases(suite):
        path = suite.lay_out(case, tmp_path / case.id)["trace"]
        trace = semtrace_testee.open_bundle(path).trace
        rows = {
            *trace.operations.ints("output_token_ids").tolist(),
            *trace.segments.ints("token_ids").tolist(),
        }
        for row in rows - {NULL}:
            assert max(memoryview(trace.artifact(row)).cast("I")) < case.ask["vocabulary"]["size"], case.id
            looked += 1
    assert looked > 200


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "is not there"),
        ("https://127.0.0.1:1", "is no URL of the form"),
        ("http://me:secret@127.0.0.1:1", "is no URL of the form"),
        ("http://127.0.0.1:99999", "has no port that there is"),
        ("127.0.0.1", "is no URL of the form"),
    ],
)
def test_no_server_is_one_sentence_and_wrong_use(url, said):
    ran = command("certify", "--testee", "true", "--profile", "live", "--server", url)
    assert ran.code == 2
    assert " ".join(ran.err.split()).count(said) == 1
    assert "secret" not in ran.out + ran.err


def test_a_model_of_no_server_is_wrong_use():
    ran = command("certify", "--testee", "true", "--profile", "live", "--server-model", "x")
    assert (ran.code, "without --server" in ran.err) == (2, True)


def test_what_is_no_such_server(suite, serve):
    with pytest.raises(UsageError, match="answers /v1/models with status 404"):
        look(f"{serve()}/elsewhere", None, live_cases(suite))


def reasons(suite, **changes):
    facts = ALL.model_copy(update=changes)
    return {each.id: reason for each in suite.cases.values() if (reason := left_out(suite, each, facts))}


def test_which_cases_need_a_server_by_script(suite):
    found = reasons(suite)
    assert set(found.values()) == {
        "it needs faults on cue",
        "it needs answers that take a time by script",
        "it needs a server that can do less, or says less",
    }
    assert {name for name, reason in found.items() if "time by script" in reason} == {"live/triggers"}
    assert {name for name, reason in found.items() if "less" in reason} == {
        "live/not-told", "live/text", "live/too-long", "token_locked/no-lock",
    }  # fmt: skip
    faults = {each.id for each in live_cases(suite) if any(rule.fault for rule in each.witness.rules)}
    assert {name for name, reason in found.items() if "faults" in reason} == faults
    assert not set(found) & {each.id for each in suite.cases.values() if each.witness is None}


def test_what_a_server_cannot_do_is_not_asked_of_it(suite):
    usual = reasons(suite)
    for changes, more, reason in (
        ({"embeddings": False}, {"live/embeddings"}, "its model does not embed"),
        ({"max_model_len": 3000}, {"live/synthetic"}, "a request has 3002 tokens, the server takes 3000"),
        (
            {"locks_tokens": False, "end_token": False},
            {"token_locked/ids", "token_locked/no-ids", "token_locked/turns", "token_locked/plan"},
            "the server does not lock tokens by vllm_xargs.semtrace_output_ids",
        ),
    ):
        found = reasons(suite, **changes)
        assert set(found) - set(usual) == more
        assert all(reason in found[each] for each in more)
    ends = reasons(suite, end_token=False)
    assert set(ends) - set(usual) == {
        "token_locked/ids", "token_locked/no-ids", "token_locked/turns", "token_locked/plan",
    }  # fmt: skip
    assert ends["token_locked/no-ids"].startswith("its base cannot be asked: the server does not end")


def certified(suite, server, testee, *names):
    cases = order(suite.cases, lambda case: case.id in names)
    outcome = Runner(suite, lambda _: golden.Inside(testee), server=server).run(cases)
    return make(suite, outcome, ["x"], selection=names)


class Small(semtrace_testee.Testee):
    """The small replayer."""

    def __init__(self, kind) -> None:
        self.replay_live = lambda inputs, ask, output=None: live_replayer.replay_live(
            kind, inputs, ask, output
        )

    def handle(self, message):
        answer = super().handle(message)
        if message["type"] == "start":
            answer["profiles"] = {"live": ["plans"], "token_locked": []}
        return answer


CASES = ("live/added-edges", "live/triggers", "token_locked/ids", "token_locked/astray")


def test_a_certificate_names_the_server_and_what_was_left_out(suite, serve):
    server = look(serve(models=["tiny"]), None, live_cases(suite))
    made = certified(suite, server, Small(live_variants.Right), *CASES)
    assert [(each.case, each.failures) for each in made.results if each.failures] == []
    assert made.server == server.facts
    assert (made.profiles["live"].of, made.profiles["token_locked"].of) == (1, 1)
    assert made.profiles["live"].left_out == {"it needs answers that take a time by script": 1}
    assert verify(made, suite) == []
    _, said = verdict(made, suite)
    assert f"on the real server {server.facts.url}, model tiny" in said
    assert "2 that it cannot show were left out" in said
    assert "left out: it needs faults on cue" in html(made, suite)
    assert "behind the witness as a relay" in html(made, suite)
    assert 'message="it needs faults on cue"' in junit(made)


def test_a_certificate_that_hides_what_was_asked_is_found_out(suite, serve):
    server = look(serve(), None, live_cases(suite))
    made = certified(suite, server, Small(live_variants.Right), *CASES)
    alone = made.model_copy(update={"server": None})
    assert any("is said to be left out because" in each for each in verify(alone, suite))
    renamed = [each.model_copy(update={"left_out": None}) for each in made.results]
    assert any(
        "by the server it is it needs" in each
        for each in verify(made.model_copy(update={"results": renamed}), suite)
    )


def test_a_wrong_replayer_is_found_out_through_the_relay(suite, serve):
    server = look(serve(), None, live_cases(suite))
    made = certified(suite, server, Small(live_variants.SwapsTwo.kind), "token_locked/ids")
    assert {failure.check for each in made.results for failure in each.failures} == {"live.locks"}


def test_ids_that_nobody_asked_for_cannot_be_seen(suite, serve):
    class Silent(live_variants.Right):
        def body(self, event):
            return super().body(event) | {"return_token_ids": False}

    server = look(serve(), None, live_cases(suite))
    made = certified(suite, server, Small(Silent), "token_locked/ids")
    said = json.dumps([vars(failure) for each in made.results for failure in each.failures])
    assert "did not ask for the ids of its output (return_token_ids)" in said


def test_a_server_that_breaks_ends_it_all(suite, serve):
    url = serve(rules=[{"request": "semtrace-0-1", "fault": {"kind": "status", "status": 500}}])
    server = look(url, None, live_cases(suite))
    with pytest.raises(UsageError, match=r"broke: semtrace-0-1 got status 500, and so did 0 other requests"):
        certified(suite, server, Small(live_variants.Right), "live/added-edges")


def test_where_nothing_can_be_asked_that_is_said(suite):
    server = RealServer(Upstream(host="127.0.0.1", port=1), ALL)
    made = certified(suite, server, Small(live_variants.Right), "live/triggers")
    code, said = verdict(made, suite)
    assert (
        int(code),
        "where a real server answers: it needs answers that take a time by script" in said,
    ) == (3, True)
