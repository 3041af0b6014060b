"""Which form of the engine ran, and why that one: what a replay says of it, in its header and to people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semtrace.replay.backend import Simulator

KEY: Final = "simulator"
"""Where an execution's header has it, in `environment`."""


@dataclass(frozen=True)
class Form:
    """The form that ran. All leave the same execution; they differ in how long it takes.

    Attributes:
        form: `fast`: the loop that jumps from event to event; `step`: the readable form, one scheduler step at a time.
        compiled: whether that loop was compiled; else the same source ran as plain Python.
        why: why it was not the compiled loop; None if it was.
    """

    form: Simulator
    compiled: bool
    why: str | None

    @classmethod
    def fast(cls, *, compiled: bool) -> Form:
        """The loop, compiled or not."""
        if compiled:
            return cls("fast", compiled=True, why=None)
        here = find_spec("numba") is not None
        why = "the replay is too short for loading the compiler" if here else "numba is not installed"
        return cls("fast", compiled=False, why=why)

    @classmethod
    def step(cls, why: str) -> Form:
        """The readable form, with the reason."""
        return cls("step", compiled=False, why=why)

    def environment(self) -> dict[str, Any]:
        """The form as a member of a header's `environment`."""
        return {KEY: asdict(self)}


def form_line(told: Mapping[str, Any]) -> str:
    """The form for people, in one line.

    Args:
        told: what an execution's header has at `KEY`.
    """
    if told["compiled"]:
        return "the engine ran compiled"
    how = "in its readable form" if told["form"] == "step" else "as plain Python"
    return f"the engine ran {how}: {told['why']}"
