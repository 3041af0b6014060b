"""Tries the logits processor alone, in vLLM's environment: python forced.py FOLDER; what it found goes out as one JSON line."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from semtrace.live.vllm.forced import CHOICES_LOG, IDS, ForcedTokens

VOCABULARY = 8


def processor(path=None, rank=0):
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY),
        parallel_config=SimpleNamespace(rank=rank),
        additional_config={} if path is None else {CHOICES_LOG: str(path)},
    )
    return ForcedTokens(config, torch.device("cpu"), is_pin_memory=False)


def asked(ids, **named):
    extra = {} if ids is None else {IDS: ids}
    return SamplingParams(extra_args=extra, **{"max_tokens": 2, **named})


def refused(parameters):
    try:
        ForcedTokens.validate_params(parameters)
    except ValueError as error:
        return str(error)
    return None


def update(*, removed=(), added=(), moved=(), size=4):
    return BatchUpdate(batch_size=size, removed=list(removed), added=list(added), moved=list(moved))


def chosen(made, rows=4, best=0):
    """What a greedy sampler takes of logits in which one id stands out."""
    logits = torch.zeros(rows, VOCABULARY)
    logits[:, best] = 5.0
    return made.apply(logits).argmax(-1).tolist()


def main(folder):
    found = {}
    found["refused"] = [
        refused(asked("1,2")),
        refused(asked([])),
        refused(asked([1, -1])),
        refused(asked([1, True])),
        refused(asked([1, 2.0])),
        refused(asked([1, 2], max_tokens=3)),
        refused(asked([1, 2], max_tokens=None)),
        refused(asked([1, 2], n=2)),
    ]
    found["taken"] = [
        refused(asked([1, 2])),
        refused(asked([1, 2, 3])),
        refused(asked(None, max_tokens=9, n=3)),
    ]

    # Rows that move, and one that asks for nothing.
    made = processor(Path(folder, "choices.jsonl"))
    a, b, c = [], [], []
    made.update_state(
        update(added=[(0, asked([3, 0]), None, a), (1, asked(None), None, []), (2, asked([4, 5]), None, b)])
    )
    found["first"] = chosen(made)
    a.append(3)
    b.append(4)
    made.update_state(update(moved=[(0, 2, MoveDirectionality.SWAP)]))
    found["swapped"] = chosen(made)
    a.append(0)
    b.append(5)
    made.update_state(update(removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    found["done"] = chosen(made)
    found["choices"] = list(made.choices)  # of four forced ids the model would have chosen one itself

    # A chunk of a prompt yields nothing; a preempted request comes back with what it had given.
    made.update_state(update(removed=[0], added=[(3, asked([6, 7]), None, c)]))
    found["chunk"] = chosen(made)[3]
    made.update_state(None)
    found["again"] = chosen(made)[3]
    c.append(6)
    made.update_state(update(removed=[3]))
    made.update_state(update(added=[(1, asked([6, 7]), None, list(c))]))
    found["resumed"] = chosen(made)[1]
    found["after"] = list(made.choices)

    # Something that comes later gives another id all the same; the next one is forced nevertheless.
    other = processor()
    d = [1]
    other.update_state(update(added=[(0, asked([2, 3]), None, d)]))
    found["next"] = chosen(other)[0]
    found["mismatched"] = list(other.choices)

    # An id that the vocabulary does not have is not forced, and ends nothing.
    other.update_state(update(added=[(0, asked([7, 8]), None, [])]))
    found["last in vocabulary"] = chosen(other)[0]
    other.update_state(update(added=[(0, asked([8]), None, [])]))
    found["beyond"] = chosen(other)[0]

    processor(Path(folder, "of another rank"), rank=1)
    found["files"] = sorted(each.name for each in Path(folder).iterdir())
    made.update_state(None)
    found["told"] = json.loads(Path(folder, "choices.jsonl").read_text().splitlines()[-1])
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
