"""The record of a block: what it is equal to, how soon it is needed, whether by a critical call; by hand, on both forms of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from semtrace.policies.interface import CallEnded, Policy
from support.lifecycle import run_engine
from support.scripted import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Block, Notice, Question, View

OPERATIONS: list[dict[str, Any]] = [
    {"name": "a", "kind": "llm", "prompt": 8, "output": 1, "content": "x", "session": "s"},
    {"name": "t", "duration_ns": 30, "after": ["a"]},
    {"name": "y", "kind": "llm", "prompt": 4, "output": 1, "content": "y", "session": "u"},
    {"name": "w", "duration_ns": 900, "after": ["y"]},
    {"name": "z", "kind": "llm", "prompt": 8, "output": 1, "content": "y", "session": "u", "after": ["w"]},
    {"name": "p", "kind": "llm", "prompt": 9, "output": 1, "content": "x", "session": "r", "after": ["a"]},
    {"name": "q", "kind": "llm", "prompt": 14, "output": 1, "content": "x", "session": "r", "after": ["p"]},
    {
        "name": "b",
        "kind": "llm",
        "prompt": 12,
        "output": 1,
        "content": "x",
        "session": "s",
        "after": ["t", "q"],
    },
]
"""`b` goes on in the session of `a` when its tool and `q` have ended; `z` in that of `y`, alone."""


class Looks(Policy):
    """It writes down the records of blocks whenever a call has ended, and decides nothing."""

    name = "looks"
    rule = "Nothing."
    source = "a test"
    notices: ClassVar = frozenset({CallEnded})
    seen: ClassVar[dict[int, Sequence[Block]]] = {}

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        if isinstance(notice, CallEnded):
            self.seen[notice.event] = view.blocks(0)
        return ()

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return ()


@pytest.mark.parametrize("form", ["step", "fast"])
def test_records(form: Any):
    """Blocks of 4: `a` fills 1 and 2, `y` fills 3. Contexts are 0 of `a`, 1 of `y`, 2 of `p`.

    At the end of `a`, `p` and `q` must end before `b`, and `p` waits, which finds both blocks; at the end of `p`, `q` waits; at that of `q`,
    `b` waits for its tool alone. `z` waits for its tool all the time. The longest path is that of `a`, so the block of `y` is not on it until
    `q` has ended, when `b` and `z` have one call each.
    """
    document = {"blocks": 30, "block_size": 4, "cost": [10, 0, 1, 1, 0], "policy": {"name": "looks"}}
    Looks.seen = {}
    with installed(Looks):
        ran = run_engine(OPERATIONS, document, simulator=form, detail=["steps"])

    def told(name: str) -> list[tuple[int, int, bool, tuple[int, ...]]]:
        blocks = Looks.seen[ran.names[name]]
        return [(each.id, each.needed_in, each.critical, each.contexts) for each in blocks]

    others = (3, 0, False, (1,))
    assert told("a") == [(1, 0, True, (0, 2)), (2, 0, True, (0, 2)), others]
    assert told("p") == told("a")
    assert told("q") == [(1, 0, True, (0,)), (2, 0, True, (0,)), (3, 0, True, (1,))]
    assert told("b") == [(3, 0, True, (1,))]
    assert told("z") == []
    keys = [each.key for each in Looks.seen[ran.names["a"]]]
    assert len(set(keys)) == 3
    assert [each.key for each in Looks.seen[ran.names["q"]]] == keys


@pytest.mark.parametrize("form", ["step", "fast"])
def test_how_soon_a_block_is_needed(form: Any):
    """`p` finds nothing of `a` now: 2 calls end before `b`, then 1, then none."""
    operations = [{**each, "content": "v"} if each["name"] in {"p", "q"} else each for each in OPERATIONS]
    document = {"blocks": 30, "block_size": 4, "cost": [10, 0, 1, 1, 0], "policy": {"name": "looks"}}
    Looks.seen = {}
    with installed(Looks):
        ran = run_engine(operations, document, simulator=form, detail=["steps"])
    needed = [
        next(each.needed_in for each in Looks.seen[ran.names[name]] if each.contexts == (0,))
        for name in "apq"
    ]
    assert needed == [2, 1, 0]
