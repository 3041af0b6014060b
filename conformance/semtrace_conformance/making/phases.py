"""The phases in which requirements are violated, and the features of each profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from semtrace_conformance.messages import Phase

PHASES: Final[dict[str, Phase]] = {
    "ST-BND": "malformed",
    "ST-BND-011": "integrity",
    "ST-BND-012": "integrity",
    "ST-BND-013": "integrity",
    "ST-BND-014": "integrity",
    "ST-BND-022": "integrity",
    "ST-TAB-001": "malformed",
    "ST-TAB-002": "malformed",
    "ST-TAB-003": "malformed",
    "ST-TAB-005": "malformed",
    "ST-DOC": "malformed",
    "ST-STO": "integrity",
    "ST-STO-001": "malformed",
    "ST-STO-003": "unsupported",
    "ST-EVO": "unsupported",
    "ST-DIG": "integrity",
    "ST-ART-005": "integrity",
    "ST-ART-006": "integrity",
    "ST-ART-007": "integrity",
    "ST-ART-008": "integrity",
    "ST-REL": "unreplayable",
    "ST-REL-021": "unsupported",
    "ST-PLAN": "unreplayable",
    "ST-SCN": "unreplayable",
    "ST-SCN-010": "unsupported",
    "ST-SCN-012": "unsupported",
    "ST-LIV": "unreplayable",
    "ST-LIV-021": "unsupported",
    "ST-INP": "unreplayable",
}
"""By requirement or area; everything else is `invalid`."""

PROFILES: Final[dict[str, dict[str, str]]] = {
    "reader": {
        "directory": "reads bundles that are directories",
        "zip": "reads bundles that are ZIP files",
        "executions": "reads and checks the executions in a bundle",
        "requests": "rebuilds chat requests, and checks that they can be",
    },
    "writer": {
        "directory": "writes bundles that are directories",
        "zip": "writes bundles that are ZIP files",
        "rewrite": "reads a bundle and writes it again in the other form",
        "numbering": "numbers the operations of a source",
    },
    "planner": {
        "judge": "says whether a plan is legal, and why not",
        "barrier": "makes barrier plans",
    },
    "release": {
        "plans": "replays under plans that add constraints",
        "arrivals": "replays with several instances: copies, recorded and drawn arrivals, closed loops",
    },
    "audit": {},
    "live": {
        "plans": "replays under plans that add constraints",
        "arrivals": "replays with several instances: copies, drawn arrivals, closed loops",
        "retries": "sends again what failed, as the scenario says",
        "failures": "follows the scenario's rules for what waits for an operation that failed",
        "concurrency": "keeps no more operations in flight than the scenario allows",
        "record": "leaves an execution, which is judged too",
    },
    "token_locked": {
        "plans": "replays under plans that add constraints",
        "arrivals": "replays with several instances: copies, drawn arrivals, closed loops",
        "retries": "sends again what failed, as the scenario says",
        "record": "leaves an execution, which is judged too",
    },
    "store": {
        "concurrent": "puts into a store from several processes at once",
        "collect": "removes what no bundle names",
        "external": "moves content between bundles and stores",
    },
}
"""The features of each profile, and what each means."""


def phase_of(requirement: str) -> Phase:
    """The phase in which a requirement is violated."""
    return PHASES.get(requirement) or PHASES.get(requirement.rsplit("-", 1)[0]) or "invalid"
