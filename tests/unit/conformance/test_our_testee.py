"""Our own reader, writer, planner, replayer and auditor are conformant; each of their mutants is not."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import pytest
import semtrace_testee

import golden
from semtrace.build import ordering
from semtrace.check import bundles, trace
from semtrace.graph import barrier, legality
from semtrace.measure import audit
from semtrace.records import chat
from semtrace.records.enums import OperationKind, Trigger
from semtrace.records.schema import Level
from semtrace.replay import arrivals, controller, ideal, run
from semtrace.store import bundle, digests, manifest
from semtrace_conformance.runner import Runner, order


def ask(suite, pattern, *, stop_at_first=False):
    runner = Runner(suite, lambda _: golden.Inside(semtrace_testee.Testee()))
    cases = order(suite.cases, lambda case: fnmatchcase(case.id, pattern))
    return runner.run(cases, stop_at_first=stop_at_first).results


@pytest.mark.parametrize(
    "profile",
    [
        *("reader", "writer", "planner", "release", "audit", "store"),
        *(pytest.param(name, marks=pytest.mark.integration) for name in ("live", "token_locked")),
    ],
)
def test_ours_is_conformant(profile, suite):
    wrong = {
        result.case.id: result.failures for result in ask(suite, f"{profile}/*") if result.status != "passed"
    }
    assert wrong == {}


def without(module, name, *requirements):
    """Take the rules away that judge these requirements."""

    def apply(patch):
        kept = tuple(rule for rule in getattr(module, name) if not set(rule.requirements) & set(requirements))
        assert len(kept) < len(getattr(module, name))
        patch.setattr(module, name, kept)

    return apply


def around(module, name, change):
    """Put something around a function: `change` gets it, and gives the one that takes its place."""
    return lambda patch: patch.setattr(module, name, change(getattr(module, name)))


def constant(module, name, value):
    return lambda patch: patch.setattr(module, name, value)


def without_nulls(known):
    """Columns without the bits that say what is null."""

    def column_bytes(column, array):
        parts = known(column, array)
        return [parts[0], *parts[2:]] if array.null_count else parts

    return column_bytes


def shifted_constraints(**change):
    return around(
        run,
        "resolve",
        lambda known: (
            lambda of, plan: replace(
                known(of, plan), **{name: of_(known(of, plan)) for name, of_ in change.items()}
            )
        ),
    )


def only_backend(kinds, statuses):
    def runs(of):
        kind, status = of.operations.ints("kind"), of.operations.ints("status")
        return np.isin(kind, kinds) & np.isin(status, statuses)

    def apply(patch):
        patch.setattr(controller, "runs_on_backend", runs)
        patch.setattr(run, "runs_on_backend", runs)

    return apply


MUTANTS = {
    "digests do not tell null from zero": ("reader/[it]*", around(digests, "column_bytes", without_nulls)),
    "the trace digest is of the work alone": ("reader/[it]*", constant(digests, "_TRACE_LEVELS", frozenset({Level.WORK}))),
    "tables are hashed from the last to the first": (
        "reader/[it]*",
        around(digests, "root_bytes", lambda known: lambda tables, levels: b"".join(known([each], levels) for each in reversed(list(tables)))),
    ),
    "stored digests are not compared with the bytes": (
        "reader/*-flipped",
        constant(bundle.Bundle, "read", lambda self, file: self._container.read(file.path)),
    ),
    "digests in the manifest are not compared with the tables": (
        "reader/*-digest",
        constant(bundles, "_trace_digests", lambda *_: ()),
    ),
    "required features are not looked at": ("reader/re*", constant(manifest, "FEATURES", frozenset({"example.org/colours"}))),
    "the order of edges is not judged": ("reader/*-swapped", without(trace, "TABLE_RULES", "ST-ORD-008")),
    "implied edges are not compared": ("reader/*edge*", without(trace, "TABLE_RULES", "ST-EDGE-010")),
    "tokens need not add up": ("reader/prompt-*", without(trace, "TABLE_RULES", "ST-CTX-005")),
    "cuts inside of a message are allowed": ("reader/context-*", without(trace, "TABLE_RULES", "ST-CTX-004")),
    "appended versions may be skipped": ("reader/*version*", without(trace, "TABLE_RULES", "ST-STATE-006")),
    "content is not compared with its digest": ("reader/content-*", without(trace, "CONTENT_RULES", "ST-ART-007")),
    "history has no names": (
        "reader/requests",
        around(chat, "join_message", lambda known: lambda *args: {key: value for key, value in known(*args).items() if key != "name"}),
    ),
    "starts that are not known come first": (
        "writer/numbering*",
        around(ordering, "order_operations", lambda known: lambda tasks, starts, *rest: known(tasks, [start or 0 for start in starts], *rest)),
    ),
    "circles are not looked for": ("planner/*circle*", constant(legality, "_joint_cycle", lambda *_: ())),
    "lags never matter": ("planner/*delay*", constant(legality, "_lag", lambda *_: 1 << 60)),
    "triggers are all alike": (
        "planner/*overlap*",
        constant(legality, "TRIGGER_ORDER", dict.fromkeys(Trigger, 0)),
    ),
    "one branch more than allowed runs at a time": (
        "planner/barrier-*",
        around(barrier, "_chain", lambda known: lambda o, branches, width, *rest: known(o, branches, width + 1, *rest)),
    ),
    "branches are taken as independent": (
        "planner/barrier-*",
        constant(barrier, "_independent", lambda _, branches: [sorted(branches, key=lambda each: each.operations)]),
    ),
    "lags are forgotten": ("release/*", shifted_constraints(lag_ns=lambda known: known.lag_ns * 0)),
    "groups are forgotten": ("release/*", shifted_constraints(waits=lambda _: (), holds=lambda _: ())),
    "groups wait for one of theirs": (
        "release/*",
        shifted_constraints(waits=lambda known: tuple(wait[:1] for wait in known.waits)),
    ),
    "a start counts as an end": (
        "release/*",
        shifted_constraints(trigger=lambda known: np.where(known.trigger == Trigger.START, Trigger.FINISH, known.trigger)),
    ),
    "embeddings are not sent to the backend": ("release/*", only_backend([OperationKind.LLM], [1, 3])),
    "failed calls are sent to the backend": ("release/f*", only_backend([OperationKind.LLM, OperationKind.EMBED], [1, 2, 3, 4])),
    "each output token costs": (
        "release/*",
        around(
            ideal.IdealBackend,
            "__init__",
            lambda known: lambda self, of, settings: (known(self, of, settings), setattr(self, "_output", [count + 1 for count in self._output]))[0],
        ),
    ),
    "users do not think": (
        "release/*",
        around(arrivals, "instances", lambda known: lambda *args: replace(known(*args), think_ns=0)),
    ),
    "copies of a task are sent together": (
        "release/*",
        around(arrivals, "instances", lambda known: lambda *args: replace(known(*args), sending_order=np.arange(len(known(*args).task)))),
    ),
    "early submissions pass the audit": ("audit/*early*", constant(audit, "judge_release", lambda _: None)),
    "counts pass the audit": ("audit/*", constant(audit, "judge_counts", lambda _: None)),
    "durations pass the audit": ("audit/*", constant(audit, "judge_durations", lambda _: None)),
    "arrivals pass the audit": ("audit/*", constant(audit, "judge_arrivals", lambda _: None)),
}  # fmt: skip


@pytest.fixture
def patched(monkeypatch):
    """Everything in semtrace and in our shim that holds a name gets the new one, wherever it was imported."""

    class Patch:
        def setattr(self, owner, name, value):
            import sys

            known = getattr(owner, name)
            monkeypatch.setattr(owner, name, value)
            for module in [each for key, each in sys.modules.items() if key.startswith("semtrace")]:
                if getattr(module, name, None) is known and not isinstance(known, (int, str)):
                    monkeypatch.setattr(module, name, value)

    return Patch()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_not_certified(name, suite, patched):
    pattern, mutate = MUTANTS[name]
    mutate(patched)
    assert ask(suite, pattern, stop_at_first=True)[-1].status == "failed"
