"""Faults planted in our scheduler, each of which the recorded schedules of vLLM must notice."""

from __future__ import annotations

import inspect
import sys
import types

import pytest

from semtrace.engine import pool, scheduler
from support import schedules

MUTANTS: dict[str, tuple[str, str]] = {
    # The pool.
    "blocks are released from the first to the last": ("in reversed(blocks):", "in blocks:"),
    "blocks without content are taken last": (
        "in reversed(plain):\n            self._free[block] = None\n            self._free.move_to_end(block, last=False)",
        "in plain:\n            self._free[block] = None",
    ),
    "blocks without content join the front in reverse": ("in reversed(plain):", "in plain:"),
    "content is evicted last in, first out": (
        "for block in kept:\n            self._free[block] = None",
        "for block in kept:\n            self._free[block] = None\n            self._free.move_to_end(block, last=False)",
    ),
    "blocks are taken from the end of the free queue": ("popitem(last=False)", "popitem()"),
    "the latest block with some content is found": ("next(iter(blocks))", "next(reversed(blocks))"),
    "equal content is merged": (
        "        self.keys[block] = key\n",
        "        if self.find(key) is not None:\n            return\n        self.keys[block] = key\n",
    ),
    "content that nobody holds is not found": (
        "return next(iter(blocks)) if blocks else None",
        "return next((each for each in blocks or () if self.holders[each]), None)",
    ),
    # Hits.
    "a hit covers the whole prompt": ("(request.tokens - 1) // self", "request.tokens // self"),
    "a resumed request finds only its prompt": (
        "request.keys[: (request.tokens - 1)",
        "request.keys[: (request.prompt_tokens - 1)",
    ),
    "hits without a holder cost no memory": ("max(new, 0) + self.pool.idle(shared)", "max(new, 0)"),
    "blocks are found only when the step is computed": (
        "        self._register(request, min(computed + tokens, request.tokens))\n",
        "",
    ),
    "two in flight: blocks are found before their last token is known": (
        "min(computed + tokens, request.tokens)",
        "computed + tokens",
    ),
    "two in flight: blocks that a decode fills are never found": (
        "self._register(request, request.computed - request.placeholders)",
        "pass",
    ),
    # Admission.
    "the watermark is ignored": ("self.settings.watermark_blocks if self.running else 0", "0"),
    "the watermark holds for a request that is alone": (
        "self.settings.watermark_blocks if self.running else 0",
        "self.settings.watermark_blocks",
    ),
    "the watermark holds for those who run": (
        "request.computed + tokens) > self.pool.free_count",
        "request.computed + tokens) + self.settings.watermark_blocks > self.pool.free_count",
    ),
    "the whole input is never reserved": (
        "request.tokens if self.settings.reserve_full_isl else tokens",
        "tokens",
    ),
    "the whole input is always reserved": (
        "request.tokens if self.settings.reserve_full_isl else tokens",
        "request.tokens",
    ),
    "all outputs to come are reserved": (
        "request.tokens if self.settings.reserve_full_isl else tokens",
        "request.prompt_tokens + request.max_tokens if self.settings.reserve_full_isl else tokens",
    ),
    "prompts are cut though chunks are off": ("not self.settings.chunked_prefill", "False"),
    "prompts are never cut": ("not self.settings.chunked_prefill", "True"),
    "one runs too many": ("< self.settings.max_num_seqs", "<= self.settings.max_num_seqs"),
    "requests are admitted in a step that preempted": ("if not step.preempted:", "if True:"),
    "a head that must wait is overtaken": (
        "held = request.tokens",
        "if len(self.waiting) > 1:\n            self.waiting.rotate(-1)\n        held = request.tokens",
    ),
    "the threshold holds for a request that is alone": (
        "if alone and not self.settings.threshold_always:",
        "if False:",
    ),
    "the threshold spares who is alone, whatever the rule": (
        "if alone and not self.settings.threshold_always:",
        "if alone:",
    ),
    "the threshold looks at those who run only": (
        "len(self.running) + len(self.waiting) <= 1",
        "len(self.running) <= 1",
    ),
    "the threshold holds for waiting requests only": (
        "_capped(_pending(request), threshold)",
        "_pending(request)",
    ),
    # Preemption.
    "the first who runs is the victim": ("return self.running[-1]", "return self.running[0]"),
    "by priority the last admitted is the victim": (
        "return max(self.running, key=lambda request: (request.priority, request.arrival))",
        "return self.running[-1]",
    ),
    "the arrival of a victim does not matter": (
        "key=lambda request: (request.priority, request.arrival)",
        "key=lambda request: request.priority",
    ),
    "of equal victims the last admitted is taken": (
        "return max(self.running, key=lambda",
        "return max(reversed(self.running), key=lambda",
    ),
    "a victim's budget is lost": ("return entry.tokens\n", "return 0\n"),
    "a victim stays in the step": ("                del step.entries[place]\n", ""),
    "whoever follows a victim is skipped": ("index -= 1", "pass"),
    "a preempted request is last": ("self.waiting.appendleft(request)", "self.waiting.append(request)"),
    "a preempted request loses its outputs": (
        "        request.preemptions += 1\n",
        "        request.preemptions += 1\n        request.outputs = 0\n",
    ),
    "two in flight: a preempted request keeps its placeholders": ("        request.placeholders = 0\n", ""),
    "two in flight: a preempted request goes on at once": (
        "if request.in_flight > 0 or request.held_back:",
        "if False:",
    ),
    "two in flight: nobody overtakes a request that waits for its token": (
        "                passed_over.append(self.waiting.popleft())\n                continue\n",
        "                break\n",
    ),
    "two in flight: who was passed over is last": (
        "self.waiting.extendleft(reversed(passed_over))",
        "self.waiting.extend(passed_over)",
    ),
    "two in flight: who was passed over comes back in reverse": (
        "self.waiting.extendleft(reversed(passed_over))",
        "self.waiting.extendleft(passed_over)",
    ),
    "two in flight: a step follows the last token": (
        "request.placeholders and request.outputs + 1 >= request.max_tokens",
        "False",
    ),
    # Ends.
    "one token too few": (
        "request.outputs == request.max_tokens:\n                self",
        "request.outputs >= request.max_tokens - 1:\n                self",
    ),
    "an aborted request keeps its blocks": (
        'if request.state != "ended":\n            self._end(request)',
        'if request.state == "waiting":\n            self._end(request)',
    ),
    "the tail of an ended request outlives its head": (
        '        self._free(request)\n        request.state = "ended"',
        '        request.blocks.reverse()\n        self._free(request)\n        request.state = "ended"',
    ),
    "arrival does not order equal priorities": (
        "return request.priority, request.arrival, request.id",
        "return request.priority, -request.arrival, request.id",
    ),
    "priority does not order": (
        'if self.settings.order == "priority":\n            insort(self.waiting, request, key=_by_priority)\n        else:\n            self.waiting.append(request)',
        "self.waiting.append(request)",
    ),
}


def planted(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The scheduler with one place of its text, or of its pool's, changed."""
    made: dict[str, types.ModuleType] = {}
    found = 0
    for module in (pool, scheduler):
        text = inspect.getsource(module)
        found += text.count(old)
        copy = types.ModuleType(module.__name__)
        monkeypatch.setitem(sys.modules, module.__name__, copy)
        exec(compile(text.replace(old, new), module.__file__, "exec"), copy.__dict__)  # noqa: S102  # our own text
        made[module.__name__] = copy
    assert found == 1, f"{found} places have {old!r}"
    return made[scheduler.__name__]


def caught() -> str | None:
    for number, (case, rows) in enumerate(schedules.golden()):
        try:
            found = schedules.difference(case, rows)
        except (IndexError, KeyError, ValueError) as error:  # a mutant may not get that far
            found = f"{type(error).__name__}: {error}"
        if found:
            return f"schedule {number}: {found}"
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_fault_is_caught(name, monkeypatch):
    wrong = planted(*MUTANTS[name], monkeypatch)
    monkeypatch.setattr(schedules, "Scheduler", wrong.Scheduler)
    monkeypatch.setattr(schedules, "Request", wrong.Request)
    assert caught() is not None


def test_nothing_is_caught_without_a_fault(monkeypatch):
    same = planted(
        "if request.in_flight > 0 or request.held_back:", "if request.in_flight >= 1:", monkeypatch
    )
    monkeypatch.setattr(schedules, "Scheduler", same.Scheduler)
    monkeypatch.setattr(schedules, "Request", same.Request)
    assert caught() is None
