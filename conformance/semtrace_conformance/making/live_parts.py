"""What the cases of the profiles live and token_locked are made of, and how one is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semtrace_conformance.making.live_expected import live
from semtrace_conformance.making.release_cases import INPUTS, document, trace_of
from semtrace_conformance.making.work import After, Op, Work, llm
from semtrace_conformance.witness.script import Rule, Script, Service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_conformance.live.work import Failed
    from semtrace_conformance.making.book import Book

Json = dict[str, Any]

MS: Final = 1_000_000
EOS: Final = 2
VOCABULARY: Final = {"first": 300, "size": 1000}
"""Ids that a replayer may make up where the trace has none; recorded ones are below the size too, so that small models have them."""
QUICK: Final = Service(first_token_ns=15 * MS, token_ns=1 * MS)
ALWAYS: Final = (
    "ST-LIV-002",
    "ST-LIV-005",
    "ST-LIV-020",
    "ST-LIV-030",
    "ST-REL-005",
    "ST-REL-007",
    "ST-REL-008",
)
"""What every case of these profiles tests."""
OWN: Final = (
    "ST-LIV-001",
    "ST-LIV-003",
    "ST-LIV-004",
    "ST-LIV-006",
    "ST-LIV-023",
    "ST-AUD-004",
    "ST-AUD-008",
    "ST-AUD-014",
    "ST-REL-034",
)
"""And what those test in which an execution is looked at."""


def ids(seed: int, count: int) -> tuple[int, ...]:
    """Token ids that the witness would not generate freely; other ones, for a seed that differs by no multiple of 700."""
    first, size = VOCABULARY["first"], VOCABULARY["size"]
    return tuple(first + (1009 * seed + 31 * at) % (size - first) for at in range(count))


def call(
    name: str, prompt: int, output: int, *after: str | After, seed: int | None = None, **more: Any
) -> Op:
    """A call of a model with recorded token ids."""
    seed = sum(name.encode()) if seed is None else seed
    return llm(
        name, prompt, output, *after, prompt_ids=ids(seed, prompt), output_ids=ids(seed + 7, output), **more
    )


def case(
    book: Book,
    name: str,
    title: str,
    requirements: Sequence[str],
    work: Work,
    *,
    plan: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
    script: Mapping[str, Any] | None = None,
    failed: Sequence[Failed] = (),
    features: Sequence[str] = (),
) -> None:
    """Add a case.

    Args:
        book: the book.
        name: `profile/name`; in the profile token_locked the scenario has its mode.
        title: what it shows.
        requirements: what it tests beside what all of them test.
        work: the work.
        plan: members of the plan; without them it is the recorded edges.
        scenario: members of the scenario.
        script: members of the witness's script.
        failed: the events that do not go well at once.
        features: features that it needs.
    """
    bundle, digest = trace_of(work)
    full: Json = {"work_digest": digest, "name": "custom" if plan else "dag", **(plan or {})}
    chosen: Json = dict(scenario or {})
    if name.startswith("token_locked/"):
        chosen["mode"] = "token_locked"
    served = Script.model_validate({"eos": EOS, "service": QUICK, **(script or {})})
    must = live(work, full, chosen, served, failed)
    prompts = [each.prompt_digest for each in must.operations if each.prompt_digest is not None]
    if len(set(prompts)) != len(prompts):
        raise ValueError(
            f"{name}: two operations have the same prompt: who sends one for the other is not found out"
        )
    book.accept(
        name,
        title,
        [*ALWAYS, *OWN, *requirements],
        kind="replay_live",
        files={"trace.semtrace": bundle, "plan.json": document(full), "scenario.json": document(chosen)},
        inputs=INPUTS,
        facts={"outcomes": must.outcomes()},
        features=features,
        ask={"vocabulary": VOCABULARY},
        output="zip",
        witness=served,
        live=must,
        budget_s=30,
    )


RETRY: Final = {"attempts": 3, "wait_ns": 40 * MS, "factor": 2}
"""Three attempts, with 40 and 80 ms between them."""


def rules_of(faults: Mapping[str, Sequence[Json]], names: Sequence[str]) -> list[Rule]:
    """By operation, what its attempts meet, as the rules of a script."""
    return [
        Rule.model_validate(
            {"request": f"semtrace-[0-9]*-{names.index(name)}", "attempts": [at], "fault": fault}
        )
        for name, each in faults.items()
        for at, fault in enumerate(each, 1)
    ]
