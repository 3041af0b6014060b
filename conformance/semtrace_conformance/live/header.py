"""The header of the execution that a replayer leaves: what was replayed and how, without contradiction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semtrace_conformance.live.work import Live


def judge_header(live: Live, header: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a header, in words: ST-LIV-006, ST-REL-034, ST-AUD-014."""
    wanted = (
        ("clock", "wall"),
        ("measured_at", "client"),
        ("mode", live.mode),
        ("tolerance_ns", live.tolerance_ns),
        ("plan_digest", live.plan_digest),
        ("work_digest", live.plan.get("work_digest")),
    )
    for key, value in wanted:
        if value is not None and header.get(key) != value:
            yield f"the header says {key} {header.get(key)!r}, must say {value!r}"
    for key, given in (("plan", live.plan), ("scenario", live.scenario)):
        document = header.get(key)
        if not isinstance(document, dict):
            yield f"the header has no {key}"
        elif other := [member for member, value in given.items() if not holds(document.get(member), value)]:
            yield f"the {key} in the header has another member {other[0]} than the one that was given"
    yield from _contradictions(header)


def holds(document: object, given: object) -> bool:
    """Whether a document has all that was given; it may have more members, defaults that were filled in."""
    if isinstance(given, dict):
        return isinstance(document, dict) and all(
            holds(document.get(key), each) for key, each in given.items()
        )
    if isinstance(given, list):
        return isinstance(document, list) and len(document) == len(given) and all(map(holds, document, given))
    return document == given


def _contradictions(header: Mapping[str, Any]) -> Iterator[str]:
    """Where the header and the scenario in it say different things (ST-AUD-014)."""
    scenario, backend = header.get("scenario"), header.get("backend")
    if not isinstance(scenario, dict):
        return
    if scenario.get("mode", "length_locked") != header.get("mode"):
        yield f"the header says mode {header.get('mode')!r}, its scenario {scenario.get('mode', 'length_locked')!r}"
    chosen = scenario.get("backend") or {"name": "ideal"}
    ran = backend if isinstance(backend, dict) else {}
    if chosen.get("name") != ran.get("name"):
        yield f"the header has the backend {ran.get('name')!r}, its scenario {chosen.get('name')!r}"
    settings = ran.get("settings") or {}
    for key, value in (chosen.get("settings") or {}).items():
        if settings.get(key) != value:
            yield f"the backend in the header has another setting {key} than its scenario"
