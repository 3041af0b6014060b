"""What a server is sent as the inputs of model operations, and what is locked as their outputs (spec, prompts.md)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.engine.prefix import token_strings
from semtrace.engine.prefix_tree import grow
from semtrace.errors import UsageError
from semtrace.kernels import run
from semtrace.live.recorded_ids import Recorded
from semtrace.live.synthetic import Crowd, Roots, Synthetic
from semtrace.records.chat import context, rebuild_request
from semtrace.records.columns import NULL
from semtrace.records.enums import Availability, OperationKind, Role
from semtrace.replay.controller import runs_on_backend
from semtrace.store.digests import work_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.engine.prefix import TokenStrings
    from semtrace.live.settings import Vocabulary
    from semtrace.records.trace import Trace

Kind = Literal["token_ids", "text", "synthetic"]
KINDS: Final[tuple[Kind, ...]] = ("token_ids", "text", "synthetic")
"""The kinds of what is sent, in the order in which `auto` prefers them."""


class Inputs:
    """What is sent for the model operations of a trace, all of one kind.

    Args:
        trace: a valid trace.
        kind: what is sent; `auto` takes the first of `KINDS` that can be sent for every operation.
        mode: the scenario's mode.
        salt: who may find whose prefixes, as in the scenario.
        copies: instances of each task.
        vocabulary: the ids of synthetic tokens.
        known_ids: ids that the server knows: recorded ones beyond are not sent. If left out, the vocabulary's size.
        takes_ids: whether the server takes token ids as prompts; if not, `auto` takes texts.
        synthetic_outputs: whether outputs without recorded ids are locked to synthetic ones in mode `token_locked`.

    Attributes:
        kind: the kind that is sent.

    Raises:
        UsageError: the vocabulary has fewer than two ids, or there are too many groups of instances.
        ReplayError, FormatError: as of `semtrace.engine.prefix.token_strings`.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        kind: Kind | Literal["auto"] = "auto",
        mode: Literal["length_locked", "token_locked"] = "length_locked",
        salt: Literal["copy", "instance", "none"] = "copy",
        copies: int = 1,
        vocabulary: Vocabulary | None = None,
        known_ids: int | None = None,
        takes_ids: bool = True,
        synthetic_outputs: bool = False,
    ) -> None:
        if vocabulary is not None and vocabulary.size - vocabulary.first < 2:
            raise UsageError(
                f"ids from {vocabulary.first} up to, not including, {vocabulary.size} tell no two tokens apart",
                code="prompts.vocabulary",
                path="settings.vocabulary",
                requirement="ST-INP-010",
                hint="give the numbers of a vocabulary with two ids or more: {first: …, size: …}",
            )
        self._trace, self._mode, self._salt, self._copies = trace, mode, salt, copies
        self._vocabulary = vocabulary
        self._known_ids = vocabulary.size if known_ids is None and vocabulary else known_ids
        self._synthetic_outputs = synthetic_outputs
        self._sent = runs_on_backend(trace)
        self._prompt: list[int] = trace.operations.ints("prompt_tokens").tolist()
        self._output: list[int] = trace.operations.ints("output_tokens").tolist()
        self._takes_ids = takes_ids
        self.kind: Kind = self._choose(takes_ids) if kind == "auto" else kind

    def _choose(self, takes_ids: bool) -> Kind:
        """The first kind in which everything can be sent (ST-INP-007)."""
        if not takes_ids or (self._sent & ~self._has_text).any():
            fallback: Kind = "synthetic" if takes_ids else "text"
        else:
            fallback = "text"
        if takes_ids and not (self._sent & (~self._recorded.complete | self._outside(prompts=True))).any():
            return "token_ids"
        return fallback

    # -- what is sent ---------------------------------------------------------------------------------------------

    def ids(self, operation: int, instance: int) -> NDArray[np.int32] | None:
        """The token ids of an operation's prompt in an instance; None if messages are sent, or it cannot be sent."""
        if self.kind == "text" or not self._sent[operation]:
            return None
        if self.kind == "token_ids":
            return self._recorded.prompt(operation) if self._recorded.complete[operation] else None
        return self._synthetic.ids(operation, 0, max(self._prompt[operation], 0), self.group(instance))

    def messages(self, operation: int) -> dict[str, Any] | None:
        """The chat request of an operation of kind `llm`, its `messages` and `tools`; None if token ids are sent, or it is not known.

        Raises:
            IntegrityError: the trace is not valid.
        """
        if self.kind != "text" or not (self._sent & self._has_text)[operation]:
            return None
        return rebuild_request(self._trace, operation)

    def text(self, operation: int) -> str | None:
        """The text that an operation of kind `embed` embeds; None if token ids are sent, or it is not known.

        Raises:
            IntegrityError: the trace is not valid.
        """
        if self.kind != "text" or not (self._sent & self._has_text)[operation]:
            return None
        segments, output = self._trace.segments, self._trace.operations.ints("output")
        artifact, role = segments.ints("artifact"), segments.ints("role")
        pieces = [
            output[at] if row == NULL else artifact[row]
            for at, row in context(self._trace, operation)
            if row == NULL or role[row] != Role.TEMPLATE
        ]
        return "".join(self._trace.artifact_text(int(piece)) or "" for piece in pieces)

    def output_ids(self, operation: int, instance: int = 0) -> NDArray[np.int32] | None:
        """The token ids that an operation's output is locked to: the recorded ones, or synthetic ones if that was asked for.

        None of an operation that has none. In mode `length_locked`, too: outputs are not locked to them then.
        """
        if not self._sent[operation] or self._output[operation] == NULL:
            return None
        if not self._unlocked[operation]:
            return self._recorded.output_ids(operation)
        if not self._synthetic_outputs:
            return None
        begin = self._prompt[operation]
        return self._synthetic.ids(operation, begin, begin + self._output[operation], self.group(instance))

    def group(self, instance: int) -> int:
        """Which instances an instance shares prefixes with (ST-SCN-011): those of the same group."""
        if self._salt == "none":
            return 0
        return instance % self._copies if self._salt == "copy" else instance

    def cache_salt(self, instance: int) -> str | None:
        """What the server is to mix into the keys of its prefix cache for an instance, None if nothing (ST-INP-017)."""
        if not self.needs_cache_salt:
            return None
        return f"semtrace-{self._key:016x}-{self.group(instance)}"

    @cached_property
    def needs_cache_salt(self) -> bool:
        """Whether instances that are not to share prefixes have the same ids, or texts, at their beginning."""
        groups = {"none": 1, "copy": self._copies, "instance": self._copies * self._trace.tasks.rows}[
            self._salt
        ]
        return groups > 1 and (self.kind != "synthetic" or self._synthetic.known_roots)

    # -- what is told of it ---------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """What cannot be sent, or locked."""
        return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        prompt = self._trace.operations.ints("prompt_tokens")
        if self.kind == "token_ids":
            yield from found(
                "ST-INP-003",
                self._sent & ~self._recorded.complete,
                "not all token ids of the prompt of operation {row} are known",
                table="segments",
                column="token_ids",
                hint="send texts (--set inputs=text) or ids made up for the purpose (--set inputs=synthetic)",
            )
        if self.kind != "synthetic":
            yield from found(
                "ST-INP-004",
                self._sent & self._outside(prompts=self.kind == "token_ids"),
                f"operation {{row}} has token ids that the server, which knows {self._known_ids}, does not know",
                table="segments",
                column="token_ids",
                hint="replay on the recorded model"
                + (", or with --mode length-locked --set inputs=synthetic" if self._takes_ids else ""),
            )
        if self.kind == "text":
            yield from self._without_text()
        needs_ids = self.kind == "synthetic"
        if self._mode == "token_locked" and self._synthetic_outputs:
            needs_ids = needs_ids or bool(self._unlocked.any())
        if needs_ids and self._vocabulary is None:
            yield Finding(
                "ST-INP-010",
                "which ids synthetic tokens may have is not known",
                "settings",
                "vocabulary",
                hint="state how many the server has: --set vocabulary.size=32000, or vocabulary: {size: 32000} in its settings",
            )
        if self.kind != "text":
            yield from found(
                "ST-INP-011",
                self._sent & (prompt == 0),
                "the prompt of operation {row} has no tokens: servers refuse to be sent nothing",
                table="operations",
                column="prompt_tokens",
                hint="leave it out (semtrace filter)",
            )
        if self._mode == "token_locked" and not self._synthetic_outputs:
            yield from found(
                "ST-INP-021",
                self._unlocked,
                "the token ids of the output of operation {row} are not known, so they cannot be locked",
                table="operations",
                column="output_token_ids",
                hint="replay with --mode length-locked, or lock such outputs to ids made up for the purpose: "
                "--set synthetic_outputs=true",
            )

    def _without_text(self) -> Iterator[Finding]:
        """Operations whose text cannot be sent, and what to do about it on this server."""
        availability = self._trace["artifacts"].ints("availability")
        if (availability == Availability.EXTERNAL).any():
            why = "the text of the input of operation {row} is not all in the trace: content of it is in a store"
            hint = "put it into the trace: semtrace artifacts embed"
        else:
            why = "the trace does not hold all of the text of the input of operation {row}"
            hint = (
                ""
                if self._takes_ids
                else "this server takes texts only: replay a trace that has them, or elsewhere"
            )
        if self._takes_ids:
            made_up = "send ids made up for the purpose: --set inputs=synthetic"
            hint = f"{hint}, or {made_up}" if hint else made_up
        yield from found(
            "ST-INP-005",
            self._sent & ~self._has_text,
            why,
            table="segments",
            column="artifact",
            hint=hint,
        )

    def remarks(self) -> list[Finding]:
        """What is sent otherwise than it might be expected. These are no errors."""
        made: list[Finding] = []
        if self.kind == "token_ids" and self._known_ids is None:
            made.append(
                Finding(
                    "ST-INP-004",
                    "how many ids the server knows is not known: it may refuse recorded ones",
                    "settings",
                    "vocabulary",
                    hint="state its vocabulary: {first: …, size: …}",
                )
            )
        if self.kind == "synthetic" and self._vocabulary is not None:
            made += self._strings.remarks
            if self.crowd.places:
                places, tokens = self.crowd.places, self.crowd.tokens
                most = f"{tokens} tokens" if tokens < 32 else "32 tokens or more"
                made.append(
                    Finding(
                        "ST-INP-014",
                        f"prompts part at {places} places in more ways than the vocabulary has ids: there two of them can "
                        f"have up to {most} more in common than they should",
                        "settings",
                        "vocabulary",
                        count=places,
                        hint="use a larger vocabulary, or fewer copies",
                    )
                )
        return made

    @property
    def crowd(self) -> Crowd:
        """Where the ids of the vocabulary did not suffice to tell synthetic prompts apart at once."""
        return self._synthetic.crowd if self.kind == "synthetic" else Crowd(0, 0)

    def facts(self) -> dict[str, Any]:
        """What an execution says of its inputs (ST-INP-001, ST-INP-022): JSON-ready."""
        made: dict[str, Any] = {"inputs": self.kind}
        if self.kind == "synthetic" and self._vocabulary is not None:
            made["vocabulary"] = {"first": self._vocabulary.first, "size": self._vocabulary.size}
            made["tokens_known_by"] = self._strings.known_by
            made["recorded_ids"] = self._keeps
        if self._mode == "token_locked":
            made["synthetic_outputs"] = int(self._unlocked.sum()) if self._synthetic_outputs else 0
        return made

    # -- what it is made of ---------------------------------------------------------------------------------------

    @cached_property
    def _recorded(self) -> Recorded:
        return Recorded(self._trace)

    @cached_property
    def _strings(self) -> TokenStrings:
        return token_strings(self._trace)

    @cached_property
    def _key(self) -> int:
        return int.from_bytes(work_digest(self._trace)[:8], "little")

    @cached_property
    def _synthetic(self) -> Synthetic:
        if self._vocabulary is None:
            raise UsageError(
                "synthetic tokens need a vocabulary",
                code="prompts.vocabulary",
                path="settings.vocabulary",
                requirement="ST-INP-010",
                hint="state it: vocabulary: {first: 1000, size: 32000}",
            )
        strings = self._strings.strings
        tree = grow(strings)
        some = np.flatnonzero((strings.kept == 0) & (np.diff(tree.first) > 0))
        node = tree.node[tree.first[some]]
        task = self._trace.operations.ints("task")[some]
        if self._salt == "instance":
            pairs = np.unique(np.stack([task, node]), axis=1)
            copy = np.tile(np.arange(self._copies), pairs.shape[1])
            pairs = np.repeat(pairs, self._copies, axis=1)
            roots = Roots(pairs[0] * self._copies + copy, pairs[1])
        else:
            groups = self._copies if self._salt == "copy" else 1
            node = np.unique(node)
            roots = Roots(np.repeat(np.arange(groups), len(node)), np.tile(node, groups))
        return Synthetic(strings, tree, self._vocabulary, self._key, roots, keep=self._keeps)

    def _outside(self, *, prompts: bool) -> NDArray[np.bool_]:
        """Operations with an id that the server does not know in what is locked as their output or, if asked for, in their prompt."""
        wrong = np.zeros(len(self._sent), dtype=np.bool_)
        if self._known_ids is None:
            return wrong
        base = self._trace.operations.ints("context_base")
        may = self._recorded.outside(self._known_ids).astype(np.int64)
        run(_handed_down, len(base), base, may)
        for row in np.flatnonzero((may > 0) & self._sent).tolist():
            parts = [np.zeros(0, dtype=np.int32)]
            if prompts and self._recorded.complete[row]:
                parts.append(self._recorded.prompt(row))
            if self._mode == "token_locked" and self._recorded.output[row]:
                parts.append(self._recorded.output_ids(row))
            wrong[row] = (np.concatenate(parts).view(np.uint32) >= self._known_ids).any()
        return wrong

    @cached_property
    def _keeps(self) -> bool:
        """Whether known ids are sent as they are: in kind `synthetic` only if the server knows all of them (ST-INP-010)."""
        ids = (
            self._strings.strings.ids.view(np.uint32) if self.kind == "synthetic" else np.zeros(0, np.uint32)
        )
        return self._known_ids is None or int(ids.max(initial=0)) < self._known_ids

    @cached_property
    def _unlocked(self) -> NDArray[np.bool_]:
        generates = self._trace.operations.ints("kind") == OperationKind.LLM
        return np.asarray(self._sent & generates & ~(self._recorded.output & self._keeps))

    @cached_property
    def _has_text(self) -> NDArray[np.bool_]:
        """By operation, whether it has an input, and the content of all of its pieces is at hand."""
        trace, operations = self._trace, self._trace.operations
        here = trace["artifacts"].ints("availability") == Availability.EMBEDDED
        outside = np.flatnonzero(~here)
        here[outside] = [trace.artifact(row) is not None for row in outside.tolist()]
        here = np.append(here, np.False_)  # the last one stands for null
        segments = trace.segments
        missing = ~here[segments.ints("artifact")] & (segments.ints("role") != Role.TEMPLATE)
        offsets = trace.segment_offsets
        pieces = np.diff(offsets)
        lacks = np.append(np.flatnonzero(missing), segments.rows)
        lack = (
            lacks[np.searchsorted(lacks, offsets[:-1])] - offsets[:-1]
        )  # the first own segment that is not here
        silent = (~here[operations.ints("output")]).astype(np.int64)
        made = np.zeros(operations.rows, dtype=np.int64)
        base, count = operations.ints("context_base"), operations.ints("context_segments")
        run(_whole, operations.rows, base, count, pieces, lack, silent, np.zeros_like(made), made)
        return made.astype(np.bool_)


def _handed_down(base: Any, wrong: Any) -> None:
    """What is wrong with an operation may be so with those that inherit from it (arrays, or lists; see kernels)."""
    for row in range(len(base)):
        if base[row] >= 0 and wrong[base[row]] > 0:
            wrong[row] = 1


def _whole(base: Any, count: Any, pieces: Any, lack: Any, silent: Any, reach: Any, made: Any) -> None:
    """Whether all pieces of each input are here (arrays, or lists; see kernels).

    `reach` becomes how many pieces of each context are here before one that is not.
    """
    for row in range(len(base)):
        total = count[row] + pieces[row]
        upto = total
        if base[row] >= 0 and reach[base[row]] < count[row]:
            upto = reach[base[row]]
        elif lack[row] < pieces[row]:
            upto = count[row] + lack[row]
        if upto == total and total > 0:
            made[row] = 1
        reach[row] = upto
        if upto == total and silent[row] == 0:
            reach[row] = total + 1
