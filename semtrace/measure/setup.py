"""How an execution was run, as its header says: arrivals, copies, engine and settings; and in what two of them differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.records.execution import ExecutionHeader

SETTINGS: Final = "backend.settings."
"""What the keys of a backend's settings begin with."""

_REMARKS: Final = ("notes", "source", "format")
"""Members of documents that change nothing."""


@dataclass(frozen=True)
class Difference:
    """One value that is not the same in two places; None where it is in one of them only.

    Attributes:
        key: dotted, `arrivals.mean_ns`, `copies`, `backend.settings.scheduler.order`.
        first, second: the values.
    """

    key: str
    first: Any
    second: Any

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready fields."""
        return {"key": self.key, "first": self.first, "second": self.second}

    def __str__(self) -> str:
        """As people read it: settings by the key that `--set` takes."""
        return f"{self.key.removeprefix(SETTINGS)}: {_shown(self.first)} → {_shown(self.second)}"


def _shown(value: object) -> str:
    if value is None:
        return "—"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values by dotted key, without remarks."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key in _REMARKS:
            continue
        if isinstance(value, dict):
            made.update(_flat(value, f"{prefix}{key}."))
        else:
            made[prefix + key] = value
    return made


def _between(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    keys = dict.fromkeys([*first, *second])
    return [
        Difference(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)
    ]


def arrivals_of(header: ExecutionHeader) -> dict[str, Any] | None:
    """The arrival process of a replay, with its numbers and seed; of arrivals given one by one, the times.

    None for an execution without a scenario. A header may hold anything: what is no arrival process is None too.
    """
    arrivals = (header.scenario or {}).get("arrivals")
    if not isinstance(arrivals, dict):
        return None
    drawn = arrivals.get("drawn_from")
    return drawn if isinstance(drawn, dict) else arrivals


def _scenario(header: ExecutionHeader) -> dict[str, Any]:
    scenario = header.scenario or {}
    arrivals = dict(arrivals_of(header) or {})
    if "times_ns" in arrivals:  # as many as there are instances: told by how many, and which
        times = json.dumps(arrivals.pop("times_ns")).encode()
        arrivals["times"] = f"{times.count(b',') + 1} given, {blake3(times).hexdigest()[:12]}"
    told = {
        key: value
        for key, value in scenario.items()
        if key not in ("arrivals", "backend", "tolerance_ns", "mode")
    }
    return _flat({"arrivals": arrivals, "copies": 1, **told}, "")


def differences(first: ExecutionHeader, second: ExecutionHeader) -> list[Difference]:
    """In what two executions were run differently, beside their plans.

    Scenarios are compared where both have one, settings where the backend has the same name.
    """
    found: list[Difference] = []
    if first.scenario is not None and second.scenario is not None:
        found += _between(_scenario(first), _scenario(second))
    if first.backend.name == second.backend.name:
        found += _between(
            _flat(first.backend.settings, SETTINGS) | {"backend.version": first.backend.version},
            _flat(second.backend.settings, SETTINGS) | {"backend.version": second.backend.version},
        )
    return found


def changes(header: ExecutionHeader) -> list[Difference] | None:
    """What an engine's settings have otherwise than the ready document of their name; None if there is none."""
    from semtrace.engine.document import read_engine, ready_documents

    name = header.backend.settings.get("name")
    if header.backend.name != "engine" or not isinstance(name, str) or name not in ready_documents():
        return None
    ready = read_engine(name, {}).as_json()
    return _between(_flat(ready, SETTINGS), _flat(header.backend.settings, SETTINGS))


def setup(header: ExecutionHeader) -> dict[str, Any]:
    """How an execution was run, as JSON-ready fields.

    `arrivals`, `copies` and `salt` are null without a scenario; `changed` says what differs from the ready engine
    document `engine`, and is null where no ready document has its name.
    """
    scenario = header.scenario
    arrivals = arrivals_of(header)
    if arrivals is not None and isinstance(times := arrivals.get("times_ns"), list):
        arrivals = {"kind": arrivals.get("kind"), "times": len(times)}
    changed = changes(header)
    return {
        "arrivals": arrivals,
        "copies": None if scenario is None else scenario.get("copies", 1),
        "salt": None if scenario is None else scenario.get("salt", "copy"),
        "engine": header.backend.settings.get("name") if header.backend.name == "engine" else None,
        "changed": None if changed is None else [each.as_dict() for each in changed],
    }


def setup_lines(header: ExecutionHeader) -> Sequence[str]:
    """How an execution was run, for people: first what it ran on, then what arrived; nothing for a native run."""
    if header.scenario is None:
        return []
    value = setup(header)
    backend = f"backend {header.backend.name}"
    if header.backend.name != "engine":
        told = ", ".join(
            f"{key.removeprefix(SETTINGS)}={_shown(each)}"
            for key, each in _flat(header.backend.settings, SETTINGS).items()
        )
        backend += f" ({told})" if told else ""
    else:
        backend += f" {_shown(value['engine'])}"
        if value["changed"] is None:
            backend += ", of no ready document"
        elif value["changed"]:
            backend += " with " + "; ".join(str(Difference(**each)) for each in value["changed"])
    arrivals = dict(value["arrivals"] or {"kind": "unknown"})
    numbers = ", ".join(f"{key} {_shown(each)}" for key, each in arrivals.items() if key != "kind")
    kind = f"arrivals {arrivals.get('kind', 'unknown')}" + (f" ({numbers})" if numbers else "")
    return [backend, f"{kind}, copies {value['copies']}, salt {value['salt']}"]
