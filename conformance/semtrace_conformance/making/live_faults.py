"""The cases of the profile live in which requests fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semtrace_conformance.live.work import Failed
from semtrace_conformance.making.live_parts import MS, RETRY, Json, call, case, rules_of
from semtrace_conformance.making.work import Work, tool
from semtrace_conformance.witness.script import Rule, Service

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book


def add_faults(book: Book) -> None:
    """Add these cases."""
    _retries(book)
    _failures(book)
    _rules(book)


CALLS: Final = ("limited", "broken", "reset", "lost", "cut", "closed")
_FAULTS: Final[dict[str, list[Json]]] = {
    "limited": [{"kind": "status", "status": 429}],
    "broken": [{"kind": "status", "status": 500}, {"kind": "status", "status": 503}],
    "reset": [{"kind": "reset", "after_tokens": 2}],
    "lost": [{"kind": "error", "after_tokens": 1}],
    "cut": [{"kind": "truncated", "after_tokens": 3}],
    "closed": [{"kind": "truncated", "after_tokens": 1, "closes": True}],
}
"""By operation, what its attempts meet."""
_MET: Final = {
    "limited": "rate_limited",
    "broken": "server_error",
    "reset": "reset",
    "lost": "server_error",
    "cut": "truncated",
    "closed": "reset",
}
"""What the event says of it (ST-LIV-041)."""


def _retries(book: Book) -> None:
    work = Work([*(call(name, 10, 5, seed=at) for at, name in enumerate(CALLS)), call("join", 30, 2, *CALLS)])
    case(
        book,
        "live/retries",
        "requests that fail, each in its way, are sent again after the time that the scenario says",
        ["ST-LIV-041", "ST-LIV-042", "ST-SCN-017"],
        work,
        scenario={"retry": RETRY},
        script={"rules": rules_of(_FAULTS, CALLS)},
        failed=[
            Failed(instance=0, operation=at, least=len(_FAULTS[name]) + 1, most=len(_FAULTS[name]) + 1)
            for at, name in enumerate(CALLS)
        ],
        features=["retries"],
    )
    case(
        book,
        "live/retry-after",
        "the server says when to come again",
        ["ST-LIV-042"],
        Work([call("a", 10, 5), call("b", 10, 5, "a")]),
        scenario={"retry": RETRY},
        script={"rules": rules_of({"a": [{"kind": "status", "status": 429, "retry_after_s": 1}]}, ["a"])},
        failed=[Failed(instance=0, operation=0, least=2, most=2)],
        features=["retries"],
    )
    case(
        book,
        "live/retries-used-up",
        "after the last attempt an operation has failed, and what waits for it goes on",
        ["ST-LIV-042", "ST-REL-015"],
        Work([call("a", 10, 5), tool("b", 10 * MS, "a"), call("c", 12, 2, "b")]),
        scenario={"retry": {"attempts": 2, "wait_ns": 30 * MS}},
        script={"rules": rules_of({"a": [{"kind": "status", "status": 500}] * 3}, ["a"])},
        failed=[Failed(instance=0, operation=0, least=2, most=2, outcome="error", failure="server_error")],
        features=["retries"],
    )
    case(
        book,
        "live/server-away",
        "the server dies and comes back",
        ["ST-LIV-041", "ST-LIV-042"],
        Work([call("a", 10, 5), call("b", 10, 4, "a"), call("c", 10, 3, "b")]),
        scenario={"retry": {"attempts": 8, "wait_ns": 30 * MS, "factor": 2}},
        script={"rules": rules_of({"b": [{"kind": "die", "for_ns": 150 * MS}]}, ["a", "b"])},
        failed=[Failed(instance=0, operation=1, least=2, most=8)],
        features=["retries"],
    )

    case(
        book,
        "live/old-connection",
        "a connection that was used before is closed without an answer",
        ["ST-LIV-043"],
        Work([call("a", 10, 5), call("b", 10, 4, "a"), call("c", 10, 3, "b")]),
        scenario={"retry": {"attempts": 2, "wait_ns": 30 * MS}},
        script={"rules": rules_of({"b": [{"kind": "reset"}]}, ["a", "b"])},
        failed=[Failed(instance=0, operation=1, least=1, most=2, resent=True)],
        features=["retries"],
    )


def _failures(book: Book) -> None:
    work = Work(
        [
            *(call(name, 10, 5, seed=at) for at, name in enumerate(CALLS)),
            call("rejected", 10, 5),
            call("garbled", 10, 5),
            *(call(f"after {name}", 20, 2, name) for name in (*CALLS, "rejected", "garbled")),
        ]
    )
    names = [*CALLS, "rejected", "garbled"]
    faults: dict[str, list[Json]] = {
        **{name: each[:1] for name, each in _FAULTS.items()},
        "rejected": [{"kind": "status", "status": 400}],
        "garbled": [{"kind": "garbage", "where": "head"}],
    }
    met = {**_MET, "rejected": "rejected", "garbled": "protocol"}
    case(
        book,
        "live/failures",
        "requests that fail are outcomes, each by its name; what waits for them goes on at once",
        ["ST-LIV-012", "ST-LIV-041", "ST-REL-015", "ST-SCN-017"],
        work,
        script={"rules": rules_of(faults, names)},
        failed=[
            Failed(
                instance=0,
                operation=at,
                outcome="refused" if name == "rejected" else "error",
                failure=met[name],
            )
            for at, name in enumerate(names)
        ],
    )
    case(
        book,
        "live/rejected",
        "what the server will not take is not sent again",
        ["ST-LIV-042"],
        Work([call("a", 10, 5), call("b", 10, 5, "a")]),
        scenario={"retry": RETRY},
        script={"rules": rules_of({"a": [{"kind": "status", "status": 422}]}, ["a"])},
        failed=[Failed(instance=0, operation=0, outcome="refused", failure="rejected")],
        features=["retries"],
    )
    case(
        book,
        "live/timeout",
        "requests that take too long are given up, silent ones and slow ones",
        ["ST-LIV-041", "ST-SCN-017"],
        Work(
            [
                call("silent", 10, 5), call("slow", 10, 5), call("stuck", 10, 5), call("fine", 10, 5),
                *(call(f"after {name}", 12, 2, name) for name in ("silent", "slow", "stuck", "fine")),
            ]
        ),
        scenario={"timeout_ns": 300 * MS},
        script={
            "rules": [
                {"request": "semtrace-0-0", "fault": {"kind": "hang"}},
                {"request": "semtrace-0-1", "service": Service(first_token_ns=100 * MS, token_ns=100 * MS)},
                {"request": "semtrace-0-2", "fault": {"kind": "hang", "after_tokens": 2}},
            ]
        },
        failed=[Failed(instance=0, operation=at, outcome="timeout", failure="timeout") for at in range(3)],
    )  # fmt: skip
    case(
        book,
        "live/timeout-retried",
        "what takes too long is sent again, if the scenario says so",
        ["ST-LIV-042"],
        Work([call("a", 10, 5), call("b", 10, 5, "a")]),
        scenario={"timeout_ns": 250 * MS, "retry": {"attempts": 2, "wait_ns": 20 * MS, "on": ["timeout"]}},
        script={"rules": rules_of({"a": [{"kind": "hang"}]}, ["a"])},
        failed=[Failed(instance=0, operation=0, least=2, most=2)],
        features=["retries"],
    )
    case(
        book,
        "live/astray",
        "wrong counts and ends are whole answers, told as they came",
        ["ST-LIV-023", "ST-LIV-040"],
        Work(
            [
                call("more", 10, 5),
                call("less", 10, 5),
                call("ends", 10, 5),
                call("join", 20, 2, "more", "less", "ends"),
            ]
        ),
        script={
            "rules": rules_of(
                {
                    "more": [{"kind": "count", "delta": 1}],
                    "less": [{"kind": "count", "delta": -2}],
                    "ends": [{"kind": "eos", "after_tokens": 2}],
                },
                ["more", "less", "ends"],
            )
        },
        failed=[Failed(instance=0, operation=at, astray=True) for at in range(3)],
    )


RULED: Final = Work(
    [
        call("fails", 10, 5),
        call("beside", 10, 150),
        call("waits", 12, 2, "fails"),
        tool("later", 5 * MS, "waits"),
        call("last", 14, 2, "later", "beside"),
    ]
)


def _rules(book: Book) -> None:
    """What becomes of the operations that wait for one that failed."""
    rules = rules_of({"fails": [{"kind": "status", "status": 500}]}, ["fails"])
    fails = Failed(instance=0, operation=0, outcome="error", failure="server_error")
    for rule in ("skip", "fail"):
        never = [Failed(instance=0, operation=at, least=0, most=0, outcome="skipped") for at in (2, 3, 4)]
        if rule == "fail":
            never.append(Failed(instance=0, operation=1, outcome="cancelled"))
        case(
            book,
            f"live/{rule}",
            {
                "skip": "what waits for an operation that failed is not sent, and all else is",
                "fail": "of an instance with an operation that failed nothing more is sent, and what runs is called off",
            }[rule],
            ["ST-LIV-012", "ST-SCN-017"],
            RULED,
            scenario={"on_failure": rule, "copies": 2},
            script={"rules": [replace_request(each, "semtrace-0-0") for each in rules]},
            failed=[fails, *never],
            features=["failures", "arrivals"],
        )


def replace_request(rule: Rule, request: str) -> Rule:
    """A rule for another request."""
    return rule.model_copy(update={"request": request})
