"""Hold a context's blocks for as long as it waits for tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from semtrace.policies.interface import CallEnded, Keep, Policy, Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Notice, Value, View


class KeepForTools(Policy):
    """Pin for the whole tool call, whatever it takes.

    It is what the papers on lifecycle policies call *preserve*: the other end of the scale from evicting at once. A context whose
    call asked for tools and whose session goes on is held until its next call is admitted.
    """

    name = "keep"
    rule = "A context whose call asked for tools holds its blocks until its next call is admitted."
    source = "InferCept (arXiv 2402.01869), its alternative 'preserve'"
    notices: ClassVar = frozenset({CallEnded})

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call has ended."""
        del view
        if isinstance(notice, CallEnded):
            yield Question(notice.context, {"last": notice.last, "tools": len(notice.tools)})

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """Keep if there are tools to wait for and a call to come."""
        return (Keep(),) if inputs["tools"] and not inputs["last"] else ()
