"""Position-independent reuse, for each call alone and for a round at once: an all-gather computed by hand.

Three agents with 6, 9 and 5 private tokens answer with 8 each; then each gets all answers after its private text. Blocks of 4: of the
first agent's 13 computed tokens, 12 are in full blocks, so 6 of its answer are; of the others' 16 and 12, 7 and 7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semtrace.build.builder import TraceBuilder
from semtrace.check.executions import check_execution
from semtrace.engine.pieces import Pieces, Places
from semtrace.policies.registry import find_policy
from semtrace.policies.text import choice_text
from semtrace.records.enums import BlockAction, OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from support.lifecycle import Ran, decisions, times
from support.rounds import all_gather
from support.scripted import FACTS

BASE = {"blocks": 60, "block_size": 4, "cost": [10, 0, 10, 1, 0]}
SETTINGS = {"least_tokens": 4, "rope_ns_per_token": 1}
COUNTS = ("cached_tokens", "reused_tokens", "computed_prompt_tokens")


def run(policy: str, *, rounds: int = 1, privates: tuple[int, ...] = (6, 9, 5), **settings: Any) -> Ran:
    """Hits of the second round are 12, 8 and 4 tokens: for the first agent, its own answer goes on where its text ends."""
    document = {**BASE, "policy": {"name": policy, "settings": settings}}
    ran = all_gather(privates, 8, rounds, document)
    assert check_execution(ran.execution, ran.trace) == []
    return ran


def counts(ran: Ran) -> list[list[int | None]]:
    return [[ran.event(f"r1a{agent}")[name] for name in COUNTS] for agent in range(3)]


def last_free(ran: Ran) -> int:
    """Blocks that are free after the step in which the second round is admitted."""
    return next(row["free_blocks"] for row in ran.rows("steps") if row["start_ns"] == 301)


def test_prefixes_do_not_help():
    ran = run("prefix")
    assert counts(ran) == [[12, None, 18], [8, None, 25], [4, None, 25]]
    assert times(ran, "r1a0") == [301, 301, 991, 1082]  # 10 + 10 · 68
    assert last_free(ran) == 34


def test_pic():
    """14, 20 and 20 tokens are found; 15 % of them, 3, are computed; each call pays 1 ns for each token."""
    ran = run("pic", **SETTINGS)
    assert counts(ran) == [[12, 11, 7], [8, 17, 8], [4, 17, 8]]
    assert decisions(ran) == [
        [301, "pic", f"reuse(tokens={tokens}, borrow=0, first=0, extra=0, charge_ns={charge})"]
        for tokens, charge in ((11, 14), (17, 20), (17, 20))
    ]
    assert times(ran, "r1a0") == [301, 301, 595, 686]  # 10 + 10 · 23 + 54
    assert last_free(ran) == 34
    adapted = [row for row in ran.rows("blocks") if row["action"] == BlockAction.REENCODE]
    assert sum(row["blocks"] for row in adapted) == 3 + 5 + 5


def test_tokendance():
    """A token costs 2 ns, once a round: 14 for the first call, 6 more for the second, none for the third, which shares 4 blocks for 1."""
    ran = run("tokendance", **SETTINGS, diff_ns_per_token=1)
    assert counts(ran) == [[12, 11, 7], [8, 17, 8], [4, 17, 8]]
    first, second, third = (choice for _, _, choice in decisions(ran))
    assert first == "reuse(tokens=11, borrow=0, first=0, extra=0, charge_ns=28)"
    assert second == "reuse(tokens=17, borrow=0, first=0, extra=0, charge_ns=12)"
    master = ran.names["r1a1"]
    assert third == f"reuse(tokens=17, borrow=4, master={master}, first=3, extra=1, charge_ns=0)"
    assert times(ran, "r1a0") == [301, 301, 581, 672]  # 10 + 10 · 23 + 40
    assert last_free(ran) == 34 + 3


def test_what_a_round_costs_and_stores():
    """Eight alike agents: 4 tokens of each answer are found, by the first agent 7 times, its own being a hit, by the others 8 times.

    pic pays for 28 + 7 · 32 tokens, tokendance for 28 and for the 4 that the first call did not have. Each call of the second round has 18
    blocks, 144 together; six mirrors share 6 of theirs and have 1 for differences.
    """
    large = {**BASE, "blocks": 300}
    found = {}
    for name, more in (("pic", {}), ("tokendance", {"diff_ns_per_token": 0})):
        ran = all_gather(
            (8,) * 8, 8, 1, {**large, "policy": {"name": name, "settings": {**SETTINGS, **more}}}
        )
        start = times(ran, "r1a0")[1]
        free = next(row["free_blocks"] for row in ran.rows("steps") if row["start_ns"] == start)
        charged = [int(choice.split("charge_ns=")[1][:-1]) for _, _, choice in decisions(ran)]
        found[name] = (charged, 299 - free)
    assert found == {"pic": ([28, *[32] * 7], 144), "tokendance": ([28, 4, *[0] * 6], 144 - 6 * 5)}


def test_a_mirror_without_its_master_takes_blocks_of_its_own():
    """ST-LIF-037: at most one request runs, so the master has ended when the mirror is admitted."""
    document = {
        **BASE,
        "scheduler": {"max_num_seqs": 1},
        "policy": {"name": "tokendance", "settings": {**SETTINGS, "diff_ns_per_token": 1}},
    }
    ran = all_gather((6, 9, 5), 8, 1, document)
    assert all(row["outcome"] == 1 for row in ran.rows("events"))


@pytest.mark.parametrize(
    ("inputs", "settings", "choice"),
    [
        ({"heads": None, "load": 20, "prefill": 1000}, {}, "reuse(tokens=85, borrow=0, first=0, extra=0, charge_ns=20)"),
        ({"heads": None, "load": 300, "prefill": 1000}, {}, "reuse(tokens=70, borrow=0, first=0, extra=0, charge_ns=300)"),
        ({"heads": None, "load": 1000, "prefill": 1000}, {}, "nothing"),
        ({"heads": 12, "load": 20, "prefill": 1000}, {"first_tokens": 4}, "reuse(tokens=88, borrow=0, first=0, extra=0, charge_ns=20)"),
        ({"heads": None, "load": 0, "prefill": 9, "most": 40}, {}, "reuse(tokens=40, borrow=0, first=0, extra=0, charge_ns=0)"),
    ],
)  # fmt: skip
def test_the_share_that_is_computed_anew(inputs: dict[str, Any], settings: dict[str, Any], choice: str):
    """Of 100 tokens at least 15; as many as take as long as adapting; or the first of each piece."""
    kind = find_policy("pic")
    policy = kind(kind.Settings.parse(settings, path="settings"), FACTS)
    assert choice_text(policy.choose({"tokens": 100, "most": 200, **inputs})) == choice


# -- pieces -------------------------------------------------------------------------------------------------------------------


class _Pool:
    """A server that has these blocks."""

    def __init__(self, keys: set[int]) -> None:
        self.keys = keys

    def find(self, keys: list[int]) -> list[int]:
        found = []
        for key in keys:
            if key not in self.keys:
                break
            found.append(key)
        return found


class _Context:
    def __init__(self, keys: list[int], instance: int = 0, server: int = 0) -> None:
        self.keys, self.instance, self.server = keys, instance, server


def test_strings_are_cut_where_contents_are():
    """ST-LIF-039: the first 6 of 10 ids are a prompt of their own, and the last 2 follow another content in a third."""
    made = TraceBuilder()
    task = made.task("t")
    ids = made.artifact(np.arange(10, dtype="<u4").tobytes(), TOKEN_IDS_TYPE)
    for prompt, spans in ((10, [(0, 10)]), (6, [(0, 6)]), (7, [(None, 5), (8, 2)])):
        call = made.operation(task, OperationKind.LLM, "call", prompt_tokens=prompt, output_tokens=3)
        for start, tokens in spans:
            if start is None:
                made.segment(call, Role.USER, text="told", tokens=tokens)
            else:
                made.segment(call, Role.USER, token_ids=ids, token_ids_start=start, tokens=tokens)
    pieces = Pieces(made.build().trace)
    whole, begin, other = (pieces.of(operation) for operation in range(3))
    assert [span[1:] for span in whole] == [(0, 6), (6, 2), (8, 2), (10, 3)]
    assert [span[1:] for span in begin] == [(0, 6), (6, 3)]
    assert [span[1:] for span in other] == [(0, 5), (5, 2), (7, 3)]
    assert whole[0][0] == begin[0][0]
    assert whole[2][0] == other[1][0]
    assert len({span[0] for each in (whole, begin, other) for span in each}) == 7


def test_where_a_piece_is():
    """ST-LIF-039: who holds most of it, as far as there is no gap; nobody on another server or of a strange instance."""
    places = Places(4)
    contexts: Any = [
        _Context([1, 2, 3]),
        _Context([4, 5, 6]),
        _Context([7, 8, 9], server=1),
        _Context([10, 11], instance=1),
    ]
    for context in range(4):
        places.put(context, [(99, 2, 8)])
    pool: Any = _Pool({1, 2, 4, 5, 6, 7, 8, 9, 10, 11})
    span = (99, 30, 8)

    def find(server: int = 0) -> Any:
        return places.find(span, contexts, lambda instance: instance == 0, pool, server)

    assert find() == (1, 2, 8)
    assert find(server=1) == (2, 2, 8)
    pool.keys -= {6}
    assert find() == (0, 2, 6)
    pool.keys -= {1, 4}
    assert find() is None
    pool.keys |= {1}
    places.put(0, [])
    assert find() is None
