"""What prompts repeat of earlier requests, by token ids."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from semtrace_adapters.vllm.matching import Matches, Run, Said, match


def ids(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def draw(seed: int, count: int) -> Any:
    rng = random.Random(seed)
    return ids(*(rng.randrange(1, 1000) for _ in range(count)))


def said(row: int, begins: int, ends: int | None, prompt: Any, output: Any) -> Said:
    return Said(row, begins, ends, prompt, output)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 200])
def test_a_prompt_that_goes_on_after_prompt_and_output_continues_them(size: int):
    first, answer = draw(1, size), draw(2, 9)
    requests = [
        said(0, 0, 10, first, answer),
        said(1, 20, 30, np.concatenate([first, answer, ids(5)]), ids(7)),
    ]
    assert match(requests, 4) == {1: Matches(0, size + 9)}


def test_the_longest_is_continued_and_of_equal_ones_the_last_to_end():
    first, answer = draw(1, 40), draw(2, 9)
    second = np.concatenate([first, answer, draw(3, 5)])
    requests = [
        said(0, 0, 10, first, answer),
        said(1, 1, 12, second, ids(7, 8)),
        said(2, 2, 11, second, ids(7, 8)),
        said(3, 20, 30, np.concatenate([second, ids(7, 8, 9)]), ids(1)),
    ]
    found = match(requests, 20)
    assert found == {3: Matches(1, 56)}


def test_a_prompt_that_is_no_longer_than_another_with_its_output_continues_nothing():
    first, answer = draw(1, 40), draw(2, 9)
    requests = [said(0, 0, 10, first, answer), said(1, 20, 30, np.concatenate([first, answer]), ids(1))]
    assert match(requests, 10) == {}


def test_who_had_not_ended_is_not_repeated():
    first, answer = draw(1, 40), draw(2, 9)
    prompt = np.concatenate([first, answer, ids(5)])
    assert match([said(0, 0, 21, first, answer), said(1, 20, 30, prompt, ids(7))], 4) == {}
    assert match([said(0, 0, None, first, answer), said(1, 20, 30, prompt, ids(7))], 4) == {}


def test_outputs_are_found_as_runs_with_or_without_their_last_token():
    one, two = draw(1, 12), draw(2, 20)
    prompt = np.concatenate([draw(3, 50), one, ids(1, 2), two[:-1], ids(3)])
    requests = [
        said(0, 0, 10, draw(4, 9), one),
        said(1, 0, 11, draw(5, 9), two),
        said(2, 20, 30, prompt, ids(7)),
    ]
    assert match(requests, 8) == {2: Matches(runs=[Run(50, 12, 0), Run(64, 19, 1)])}
    assert match(requests, 13) == {2: Matches(runs=[Run(64, 19, 1)])}


def test_the_longest_run_is_taken_first_and_a_token_is_of_one():
    long = draw(1, 30)
    short = long[10:20]
    requests = [
        said(0, 0, 10, draw(4, 9), short),
        said(1, 0, 11, draw(5, 9), long),
        said(2, 20, 30, np.concatenate([ids(9), long, short]), ids(7)),
    ]
    assert match(requests, 8) == {2: Matches(runs=[Run(1, 30, 1), Run(31, 10, 0)])}


def test_the_output_of_several_is_of_the_last_to_end():
    same = draw(1, 30)
    requests = [
        said(0, 0, 12, draw(4, 9), same),
        said(1, 0, 11, draw(5, 9), same),
        said(2, 20, 30, np.concatenate([ids(9), same]), ids(7)),
    ]
    assert match(requests, 8) == {2: Matches(runs=[Run(1, 30, 0)], ambiguous=1)}


def test_runs_are_looked_for_after_what_is_continued():
    first, answer, other = draw(1, 40), draw(2, 9), draw(3, 15)
    prompt = np.concatenate([first, answer, ids(5), other])
    requests = [
        said(0, 0, 10, first, answer),
        said(1, 0, 11, draw(4, 9), other),
        said(2, 20, 30, prompt, ids(7)),
    ]
    assert match(requests, 8) == {2: Matches(0, 49, [Run(50, 15, 1)])}


def test_what_is_not_known_repeats_nothing_and_is_not_repeated():
    one = draw(1, 12)
    requests = [
        said(0, 0, 10, None, one),
        said(1, 0, 11, draw(5, 9), None),
        said(2, 20, 30, None, ids(7)),
        said(3, 20, 30, np.concatenate([one, ids(3)]), ids(7)),
    ]
    assert match(requests, 8) == {3: Matches(runs=[Run(0, 12, 0)])}


def naive(requests: list[Said], least: int) -> dict[int, Matches]:
    """The same, place by place."""
    found = {}
    for request in requests:
        done = sorted(
            (e for e in requests if e.ends_ns is not None and e.ends_ns <= request.begins_ns),
            key=lambda e: (e.ends_ns, e.row),
        )
        prompt = request.prompt.tolist()
        base, kept = None, 0
        for each in done:
            whole = each.prompt.tolist() + each.output.tolist()
            if (
                len(each.output)
                and len(whole) < len(prompt)
                and prompt[: len(whole)] == whole
                and len(whole) >= kept
            ):
                base, kept = each.row, len(whole)
        places = []
        for order, each in enumerate(done):
            output = each.output.tolist()
            for at in range(kept, len(prompt)):
                for tokens in (len(output), len(output) - 1):
                    if tokens >= least and prompt[at : at + tokens] == output[:tokens]:
                        places.append((-tokens, at, -order, each.row))
                        break
        runs, used, ambiguous = [], set(), 0
        for tokens, at, _, row in sorted(places):
            if not used & set(range(at, at - tokens)):
                used |= set(range(at, at - tokens))
                runs.append(Run(at, -tokens, row))
                ambiguous += sum(place[:2] == (tokens, at) for place in places) > 1
        if base is not None or runs:
            found[request.row] = Matches(base, kept, sorted(runs, key=lambda run: run.begin), ambiguous)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_matches_are_those_that_are_found_place_by_place(seed: int):
    rng = random.Random(seed)
    requests: list[Said] = []
    for row in range(12):
        parts: list[int] = []
        for _ in range(rng.randint(1, 4)):
            if requests and rng.randrange(3):
                each = rng.choice(requests)
                parts += rng.choice([each.output.tolist(), each.output.tolist()[:-1], [*each.prompt.tolist(), *each.output.tolist()]])  # type: ignore[union-attr]  # fmt: skip
            else:
                parts += [rng.randrange(3) for _ in range(rng.randint(1, 12))]
        output = ids(*(rng.randrange(3) for _ in range(rng.randint(0, 8))))
        begins = row * 2
        requests.append(said(row, begins, begins + rng.randint(1, 6), ids(*parts), output))
    assert match(requests, 2) == naive(requests, 2)
