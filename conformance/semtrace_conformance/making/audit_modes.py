"""Cases of the profile audit on other runs than virtual replays: on a wall clock, token-locked, native."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from blake3 import blake3

from semtrace.records.enums import Evidence, FinishReason
from semtrace_conformance.making.audit_parts import (
    PARTLY,
    SCENARIO,
    SMALL,
    WORK,
    accept,
    custom_plan,
    found,
    output_ids,
    plant,
    rows_of,
    trace,
)
from semtrace_conformance.making.timing import Faults, replay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semtrace_conformance.making.audit_parts import Json
    from semtrace_conformance.making.book import Book
    from semtrace_conformance.making.draft import Run


def other_modes(book: Book) -> None:
    """Runs that are no virtual replays."""
    dag = custom_plan(name="dag")
    _wall(book, dag)
    _locked(book)
    _crowded(book, dag)
    _native(book, dag)


def _wall(book: Book, dag: Json) -> None:
    y, search = WORK.number("y"), WORK.number("search")

    def run(faults: Faults) -> Run:
        made = replay(WORK, dag, SCENARIO, faults).run()
        made.header |= {"clock": "wall", "tolerance_ns": 5, "measured_at": "client"}
        return made

    within = Faults({(2, y): 5, (0, search): 3}, {(0, search): 5})
    accept(
        book, "wall", "a live replay: some submissions late within the tolerance, a tool that took longer",
        ["ST-AUD-033", "ST-AUD-040"], run(within), trace(),
    )  # fmt: skip
    late = Faults({(2, y): 6, (0, search): 3}, {(0, search): 5})
    plant(book, "wall", "wall-late", "a submission is late by more than the tolerance",
            [found("ST-AUD-033", [rows_of("y")[0]])], run(late))  # fmt: skip
    early = Faults({(2, y): -1, (0, search): 3}, {(0, search): 5})
    plant(book, "wall", "wall-early", "a submission is early by less than the tolerance",
            [found("ST-AUD-032", [rows_of("y")[0]])], run(early))  # fmt: skip
    long = Faults({(2, y): 5, (0, search): 3}, {(0, search): 6})
    plant(book, "wall", "wall-long", "a tool took longer by more than the tolerance",
            [found("ST-AUD-040", [rows_of("search")[0]])], run(long))  # fmt: skip
    loose = run(Faults({(2, y): 1_000_001}))
    loose.header["tolerance_ns"] = 5_000_000
    plant(book, "wall", "wall-loose", "it allows itself 5 ms, and is late by more than 1 ms",
            [found("ST-AUD-033", [rows_of("y")[0]])], loose)  # fmt: skip
    short = Faults({(2, y): 5, (0, search): 3}, {(0, search): -1})
    plant(book, "wall", "wall-short", "a tool took less than it did",
            [found("ST-AUD-040", [rows_of("search")[0]])], run(short))  # fmt: skip


def _locked(book: Book) -> None:
    source = trace(ids=True)
    source.put("operations", WORK.number("b"), finish_reason=FinishReason.LENGTH)
    plan = {"work_digest": source.digest("work"), "name": "dag"}

    def run(change: Mapping[int, bytes] | None = None) -> Run:
        made = replay(WORK, plan, SCENARIO).run()
        # The backend ideal yields no tokens, so the replay is another's (ST-SCN-010).
        backend = {"name": "by hand"}
        made.header |= {"mode": "token_locked", "work_digest": plan["work_digest"], "backend": backend}
        made.header["scenario"] = {**made.header["scenario"], "mode": "token_locked", "backend": backend}
        ids = {}
        for at, row in enumerate(made.tables["events"]):
            operation = WORK.operations[row["operation"]]
            if operation.on_backend and operation.output:
                ids[at] = (change or {}).get(at) or output_ids(row["operation"], operation.output)
        made.content = {blake3(content).digest(): content for content in ids.values()}
        places = {digest: place for place, digest in enumerate(sorted(made.content))}
        for at in rows_of("b"):
            made.tables["events"][at]["finish_reason"] = FinishReason.LENGTH
        for at, content in ids.items():
            made.tables["events"][at]["output_ids"] = places[blake3(content).digest()]
        return made

    accept(
        book,
        "token-locked",
        "a token-locked replay with the recorded ids",
        ["ST-AUD-022", "ST-AUD-023"],
        run(),
        source,
    )
    b = rows_of("b")[0]
    right = output_ids(WORK.number("b"), 6)
    absent = run()
    absent.tables["events"][b]["output_ids"] = None
    plant(
        book,
        "token-locked",
        "no-tokens",
        "the ids of an output are not there",
        [found("ST-AUD-022", [b])],
        absent,
    )
    for name, mutation, content in (
        ("token", "the last token of an output is another", right[:-4] + struct.pack("<I", 7)),
        ("token-missing", "an output has one token id less", right[:-4]),
    ):
        plant(book, "token-locked", name, mutation, [found("ST-AUD-022", [b])], run({b: content}))

    stopped = run()
    stopped.tables["events"][b]["finish_reason"] = FinishReason.STOP
    plant(book, "token-locked", "token-finish", "an output that was cut off is said to have ended by itself",
          [found("ST-AUD-023", [b])], stopped)  # fmt: skip


def _crowded(book: Book, dag: Json) -> None:
    """A live replay whose scenario limits how many operations are in flight."""

    def run(limit: int) -> Run:
        made = replay(WORK, dag, SCENARIO).run()
        made.header |= {"clock": "wall", "tolerance_ns": 5, "measured_at": "client"}
        made.header["scenario"] = {**made.header["scenario"], "concurrency": limit}
        return made

    events = run(1).tables["events"]
    sent = sorted((row["submitted_ns"], at) for at, row in enumerate(events) if row["server"] is not None)
    beside = {
        at: sum(
            events[other]["submitted_ns"] <= time < events[other]["finished_ns"] for _, other in sent[:place]
        )
        for place, (time, at) in enumerate(sent)
    }
    most = max(beside.values()) + 1
    accept(
        book,
        "crowd",
        "a live replay with as many operations in flight as allowed",
        ["ST-AUD-037"],
        run(most),
        trace(),
    )
    plant(book, "crowd", "crowd-too-many", "one less is allowed",
          [found("ST-AUD-037", [at for at, count in sorted(beside.items()) if count + 1 == most])], run(most - 1))  # fmt: skip


def _native(book: Book, dag: Json) -> None:
    def run(faults: Faults, evidence: Evidence = Evidence.OBSERVED) -> Run:
        made = replay(WORK, dag, {"backend": SMALL}, faults).run()
        for name in ("plan", "plan_digest", "scenario"):
            del made.header[name]
        made.header |= {"mode": "native", "clock": "wall", "measured_at": "client"}
        for row in made.tables["events"]:
            for name in [each for each in row if each.endswith("_evidence")]:
                if row[name] != Evidence.MISSING:
                    row[name] = evidence
        return made

    search = WORK.number("search")
    accept(
        book, "native", "the recorded run itself, which nobody released",
        ["ST-AUD-103"], run(Faults({(0, search): 90})), trace(), PARTLY,
    )  # fmt: skip
    accept(
        book, "native-inferred", "a recorded run whose times are inferred, and contradict an edge",
        ["ST-AUD-103"], run(Faults({(0, search): -9}), Evidence.INFERRED), trace(), "not judged",
    )  # fmt: skip
    plant(book, "native-inferred", "native-observed", "the times are observed",
            [found("ST-AUD-032", [search])], run(Faults({(0, search): -9})), ["ST-AUD-103"])  # fmt: skip
    plant(book, "native", "native-early", "an operation began before one that it waits for had ended",
            [found("ST-AUD-032", [search])], run(Faults({(0, search): -8})), ["ST-AUD-103"])  # fmt: skip
