"""Helpers of the MetaGPT tests: recordings, the server's account of them, logs written line by line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from semtrace.check.trace import check_trace
from semtrace.records.chat import rebuild_request
from semtrace.records.document import canonical_json
from semtrace.records.enums import AccessMode, OperationKind
from semtrace_adapters.base import ImportOptions
from semtrace_adapters.metagpt import ADAPTER

RECORDINGS = Path(__file__).resolve().parents[1] / "examples" / "metagpt"
USER = "metagpt.actions.add_requirement.UserRequirement"


@dataclass
class Imported:
    """An import with its tables as lists of rows."""

    result: object
    tables: dict = field(default_factory=dict)

    def rows(self, table):
        if table not in self.tables:
            self.tables[table] = self.result.trace[table].data.to_pylist()
        return self.tables[table]

    @property
    def trace(self):
        return self.result.trace

    @property
    def events(self):
        return self.result.execution.tables["events"].data.to_pylist()

    @property
    def losses(self):
        """Counts by code."""
        counts = {}
        for loss in self.result.loss:
            counts[loss.code] = counts.get(loss.code, 0) + loss.count
        return counts

    def operations(self, kind=None):
        """Ids and rows of operations of a kind."""
        return [
            (i, row) for i, row in enumerate(self.rows("operations")) if kind is None or row["kind"] == kind
        ]

    @property
    def calls(self):
        return self.operations(OperationKind.LLM)

    def edges_into(self, target, kind=None):
        return [
            e for e in self.rows("edges") if e["target"] == target and (kind is None or e["kind"] == kind)
        ]

    def sources_of(self, target, kind=None):
        return sorted({e["source"] for e in self.edges_into(target, kind)})

    def text(self, artifact):
        return None if artifact is None else self.trace.artifact(artifact).decode()

    def states(self, namespace):
        """Versions by the state's name: (content, writer, readers)."""
        versions, accesses = self.rows("state_versions"), self.rows("state_accesses")
        found = {}
        for i, state in enumerate(self.rows("states")):
            if state["namespace"] != namespace:
                continue
            found[state["name"]] = [
                (
                    self.text(version["artifact"]),
                    version["writer"],
                    [
                        a["operation"]
                        for a in accesses
                        if a["state_version"] == at and a["mode"] == AccessMode.READ
                    ],
                )
                for at, version in enumerate(versions)
                if version["state"] == i
            ]
        return found

    def annotations(self, key):
        return [row["value"] for row in self.rows("annotations") if row["key"] == f"metagpt/{key}"]


def load(*paths: Path, **values: str):
    """Import, and check that the trace has no finding."""
    imported = Imported(ADAPTER.read(list(paths), ImportOptions(values=values)))
    findings = check_trace(imported.trace)
    assert not findings, [str(finding) for finding in findings[:5]]
    return imported


def served(path):
    """The requests that the server of a recording answered, in order of arrival."""
    entries = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return sorted(entries, key=lambda entry: entry["arrival_unix_ns"])


def canonical(messages):
    return canonical_json(messages)


def matched(imported, entries):
    """Each call with the answered request of the server that had the same messages; equal ones pair in order."""
    waiting = {}
    for entry in entries:
        if entry["status"] == HTTPStatus.OK:
            waiting.setdefault(canonical(entry["request"]["messages"]), []).append(entry)
    pairs = []
    for operation, row in sorted(imported.calls, key=lambda each: imported.events[each[0]]["submitted_ns"]):
        request = rebuild_request(imported.trace, operation)
        pairs.append((operation, row, waiting[canonical(request["messages"])].pop(0)))
    assert not any(waiting.values())
    return pairs


@dataclass
class LogWriter:
    """Writes a MetaGPT log line by line, one millisecond apart unless told otherwise."""

    lines: list[str] = field(default_factory=list)
    clock_ms: int = 0

    def line(self, module, function, message, level="DEBUG", wait_ms=1):
        self.clock_ms += wait_ms
        seconds, ms = divmod(self.clock_ms, 1000)
        stamp = f"2026-11-29 10:{seconds // 60:02d}:{seconds % 60:02d}.{ms:03d}"
        self.lines.append(f"{stamp} | {level:<8} | {module}:{function}:1 - {message}")
        return self

    def invest(self):
        return self.line("metagpt.team", "invest", "Investment: $3.0.", "INFO")

    def publish(self, id_, content, role, action, sent_from="", send_to=("<all>",)):
        message = {
            "id": id_, "content": content, "role": role, "cause_by": action, "sent_from": sent_from, "send_to": list(send_to),
        }  # fmt: skip
        return self.line(
            "metagpt.environment.base_env", "publish_message", "publish_message: " + json.dumps(message)
        )

    def ask_user(self, content="Do the thing", id_="user"):
        return self.publish(id_, content, "Human", USER)

    def observe(self, role, *news: str):
        if not news:
            return self.line("metagpt.roles.role", "run", f"{role}: no news. waiting.")
        return self.line("metagpt.roles.role", "_observe", f"{role} observed: {list(news)!r}")

    def act(self, role, action):
        self.line("metagpt.roles.role", "_set_state", f"actions=[{action}], state=0")
        self.line("metagpt.roles.role", "_react", f"{role}: self.rc.state=0, will do {action}")
        return self.line("metagpt.roles.role", "_act", f"{role}: to do {action}({action})", "INFO")

    def ask(self, role, text):
        name, _, profile = role.removesuffix(")").partition("(")
        system = f"You are a {profile}, named {name}, your goal is . "
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return self.line("metagpt.provider.base_llm", "aask", repr(messages))

    def usage(self, prompt, output, wait_ms=20):
        counts = f"prompt_tokens: {prompt}, completion_tokens: {output}"
        text = f"Total running cost: $0.001 | Max budget: $3.000 | Current cost: $0.001, {counts}"
        return self.line("metagpt.utils.cost_manager", "update_cost", text, "INFO", wait_ms)

    def done(self, role, action, id_, content, send_to=("<all>",)):
        """A role is done and publishes."""
        _, _, profile = role.removesuffix(")").partition("(")
        self.line("metagpt.roles.role", "_set_state", f"actions=[{action}], state=-1")
        return self.publish(
            id_, content, profile, f"team.{action}", f"team.{profile.replace(' ', '')}", send_to
        )

    def end_round(self, left, *, idle=False):
        self.line("metagpt.environment.base_env", "run", f"is idle: {idle}")
        return self.line("metagpt.team", "run", f"max n_round={left} left.")

    def all_idle(self):
        return self.line("metagpt.team", "run", "All roles are idle.")

    def save(self, path):
        path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        return path
