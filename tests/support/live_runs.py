"""Replays on servers for tests: what a server answers by a script, the witness as a program, and short ways to run and to look."""

import contextlib
import json
import subprocess
import sys

import numpy as np

from semtrace.build.builder import TraceBuilder
from semtrace.graph.plan import Plan
from semtrace.measure.audit import audit
from semtrace.records.enums import FinishReason, OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from semtrace.store.digests import show, work_digest
from support.raw_server import DONE, STREAM, as_json, plain, raw_server, tokens, usage

MS = 1_000_000
HOUR_NS = 3600 * 1000 * MS
VOCABULARY = {"first": 100, "size": 1000}


def good(asked, *, cached=None):
    """A whole answer of as many tokens as were asked for."""
    body = asked.json
    count, prompt = body["max_tokens"], len(body.get("prompt", [0] * 8))
    if not body.get("stream"):
        choices = [{"text": "x", "token_ids": list(range(count)), "finish_reason": "length"}]
        return [as_json({"choices": choices, "usage": {"prompt_tokens": prompt, "completion_tokens": count}})]
    parts = [tokens([each], finish="length" if each == count - 1 else None) for each in range(count)]
    return [STREAM + b"".join(parts) + usage(prompt, count, cached) + DONE]


def server_of(script):
    """A server that answers what is asked of it before a run, and follows a script with requests of the trace."""
    from support.raw_server import Asked

    def answer(asked: Asked):
        name = asked.header("x-request-id") or ""
        if name.startswith(("semtrace-ask", "semtrace-doctor", "semtrace-warm")):
            if asked.head.startswith("GET /v1/models "):
                return [as_json({"data": [{"id": "m", "max_model_len": 5000}]})]
            if asked.head.startswith("GET") or not asked.head.startswith("POST /v1/completions"):
                return [plain("404 Not Found", b"")]
            if not isinstance(asked.json.get("ignore_eos", True), bool):
                return [plain("400 Bad Request", b"")]
            return good(asked)
        return script(asked)

    return raw_server(answer)


def singles(count=1, prompt=8, output=3):
    made = TraceBuilder()
    for each in range(count):
        task = made.task(f"task {each}")
        row = made.operation(task, OperationKind.LLM, "call", prompt_tokens=prompt, output_tokens=output)
        made.segment(row, Role.USER, tokens=prompt)
    return made.build().trace


def scenario_of(url, *, settings=None, **members):
    settings = {"url": url, "vocabulary": VOCABULARY, **(settings or {})}
    values = {"tolerance_ns": HOUR_NS, **members, "backend": {"name": "http", "settings": settings}}
    return Scenario.parse(values, path="scenario")


def run(trace, url, *, progress=None, **members):
    plan = Plan.parse({"work_digest": show(work_digest(trace)), "name": "dag", "base": "dag"}, path="plan")
    return replay(trace, plan, scenario_of(url, **members), progress=progress)


def violations(trace, execution):
    return [str(each) for each in audit(trace, execution, tolerance_ns=HOUR_NS).findings]


def requests_of(server):
    return [each for each in server.asked if (each.header("x-request-id") or "")[9:10].isdigit()]


def rows(execution, *names):
    return list(zip(*[execution.events.ints(name).tolist() for name in names], strict=True))


EOS = 2


def locked_trace():
    made = TraceBuilder()
    rows_ = []
    for each, (ids, reason) in enumerate(
        [([900, 2, 901, 902], FinishReason.LENGTH), ([77, 78, EOS], FinishReason.STOP)]
    ):
        task = made.task(f"task {each}")
        row = made.operation(
            task, OperationKind.LLM, "call", prompt_tokens=5, output_tokens=len(ids), finish_reason=reason
        )
        for name, values in (("prompt", [20 + each, 21, 22, 23, 24]), ("output", ids)):
            held = made.artifact(np.array(values, "<u4").tobytes(), TOKEN_IDS_TYPE)
            if name == "prompt":
                made.segment(row, Role.USER, token_ids=held, token_ids_start=0, tokens=5)
            else:
                made.update_operation(row, output_token_ids=held)
        rows_.append(row)
    return made.build().trace


class Witness:
    """A witness that runs as a program of its own, by a script."""

    def __init__(self, folder, script) -> None:
        (folder / "script.json").write_text(json.dumps(script))
        self.record = folder / "record.jsonl"
        self._program = subprocess.Popen(
            [
                sys.executable, "-m", "semtrace_conformance.witness",
                "--script", folder / "script.json", "--record", self.record, "--port", "0",
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._program.stdout is not None
        self.url = json.loads(self._program.stdout.readline())["url"]

    def kill(self):
        """End it at once, without any order."""
        self._program.kill()
        self._program.wait(20)
        self._program.stdout.close()

    def end(self):
        """The requests of the trace that came, when it has ended."""
        if self._program.poll() is None:
            self._program.terminate()
            self._program.communicate(timeout=20)
        rows = [json.loads(line) for line in self.record.read_text().splitlines()]
        return [
            row for row in rows if str(row["request"]).startswith("semtrace-") and row["request"][9].isdigit()
        ]


@contextlib.contextmanager
def witness(folder, script=None):
    """The witness as a program; gives its URL."""
    made = Witness(folder, script or {"service": {"first_token_ns": MS, "token_ns": 10_000}})
    try:
        yield made.url
    finally:
        made.end()
