"""What a KV lifecycle policy is: the interface that ours and everybody's are written against (spec, lifecycle.md).

A policy is told of what happens (`Notice`), asks itself questions about it (`Question`: the numbers that the answer depends on),
and answers each (`choose`: numbers in, actions out, and nothing else). The engine logs every question with its answer, so that
the same numbers can be put to the policy again; and it carries the actions out. A policy sees what a real system could see at
that instant: never a duration, an output or an arrival that is still to come.

Policies are found through the entry-point group `semtrace.policies`; each entry is a subclass of `Policy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Value = int | float | str | bool | None
"""What a question may hold; floats are finite."""


class TierName(StrEnum):
    """A tier below the device."""

    HOST = "host"
    REMOTE = "remote"


# -- what a policy sees -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkFacts:
    """A link between the device and a tier.

    Attributes:
        out_bytes_per_s: bandwidth out of the device.
        in_bytes_per_s: bandwidth into it.
        latency_ns: time before the first byte.
        per_run_ns: time before that for each contiguous run of blocks.
    """

    out_bytes_per_s: int
    in_bytes_per_s: int
    latency_ns: int
    per_run_ns: int


@dataclass(frozen=True)
class Facts:
    """What a policy knows of the engine before the run.

    Attributes:
        block_size: tokens in a block.
        block_bytes: bytes of a block, None where the model is not known.
        device_blocks: blocks of a server that can hold something.
        tier_blocks: blocks of each tier that there is; host memory is each server's own, remote memory is shared by all.
        links: the link to each tier that there is.
        servers: how many servers.
        max_num_seqs: most requests running at once on a server.
        max_num_batched_tokens: most tokens in a step.
    """

    block_size: int
    block_bytes: int | None
    device_blocks: int
    tier_blocks: Mapping[TierName, int]
    links: Mapping[TierName, LinkFacts]
    servers: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True)
class Context:
    """The keys and values of one session of one instance, as they are now; of one call, where it has no session.

    Attributes:
        id: its number; contexts are numbered as their first call is submitted.
        server: where its last call ran.
        tokens: tokens of its full blocks.
        blocks: its full blocks.
        device_blocks: how many of them, from the first without a gap, are on the device.
        host_blocks: how many of them are in host memory.
        remote_blocks: how many of them are in remote memory.
        pinned: whether it holds its blocks.
        last_used_ns: when its last call ended.
        tool: the tool that it waits for, None while it waits for none; of several, the one that it has waited for longest.
        tool_since_ns: since when.
        steps_left: calls on the longest declared path from its last call on, that one not counted.
        critical: whether no call of its instance that has not ended begins a longer one.
        calls: calls of it that have ended.
        calls_left: calls of it that have not ended, as far as the trace declares them.
    """

    id: int
    server: int
    tokens: int
    blocks: int
    device_blocks: int
    host_blocks: int
    remote_blocks: int
    pinned: bool
    last_used_ns: int
    tool: str | None
    tool_since_ns: int | None
    steps_left: int
    critical: bool
    calls: int
    calls_left: int


@dataclass(frozen=True)
class Block:
    """A device block that a context, or a call that was not admitted yet, will find again if it stays.

    Attributes:
        id: its number on its server.
        key: what it is equal to: blocks with equal keys hold the same tokens after the same tokens, on whatever server or tier.
        needed_in: how soon it is needed: calls that must end, one after the other, before the next call that needs it can begin, by the
            declared edges; 0 if one waits for nothing but tools, or waits for admission. Of several that need it, the soonest.
        critical: whether one that needs it is critical.
        contexts: the contexts that need it, in the order of their numbers.
    """

    id: int
    key: int
    needed_in: int
    critical: bool
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A model call that was submitted and not admitted yet.

    Attributes:
        event: its event.
        context: its context.
        server: where it was routed.
        prompt_tokens: tokens of its prompt.
        device_hit_tokens: leading tokens of it that the server's pool has now.
        host_hit_tokens: tokens that follow those, and that host memory has; 0 while its context is being loaded.
        remote_hit_tokens: tokens that follow those, and that remote memory has; 0 while its context is being loaded.
        critical: whether no call of its instance that has not ended begins a longer declared path.
    """

    event: int
    context: int
    server: int
    prompt_tokens: int
    device_hit_tokens: int
    host_hit_tokens: int
    remote_hit_tokens: int
    critical: bool


@dataclass(frozen=True)
class Piece:
    """A stretch of a call's prompt that has one content, wherever it lies.

    Attributes:
        key: equal for pieces with the same tokens; two pieces with different keys have no tokens in common.
        first: ordinal of its first token in the prompt.
        tokens: how many tokens.
        context: the context whose blocks on the device of the call's server hold most of it; None if there is none.
        place: ordinal of its first token there.
        held: how many of its tokens they hold, from the first on.
    """

    key: int
    first: int
    tokens: int
    context: int | None
    place: int | None
    held: int


class View(Protocol):
    """The engine at this instant, as far as a real system could see it."""

    @property
    def now_ns(self) -> int:
        """The time, in ns."""
        ...

    def free_blocks(self, server: int) -> int:
        """Device blocks that nobody holds; what they keep can be evicted."""
        ...

    def waiting_needs(self, server: int) -> Iterator[int]:
        """Blocks that each waiting request needs to be admitted with all its tokens, the next one first; not those passed over."""
        ...

    def running(self, server: int) -> int:
        """Requests that run."""
        ...

    def running_tokens(self, server: int) -> int:
        """Tokens of the requests that run, computed so far."""
        ...

    def mean_wait_ns(self, server: int) -> int:
        """Mean time from submission to admission of the calls admitted so far, in whole ns; 0 if there are none."""
        ...

    def pieces(self, event: int) -> Sequence[Piece]:
        """The pieces of the prompt of a call that waits, in order; none unless the policy asks for `pieces`."""
        ...

    def context(self, context: int) -> Context:
        """A context as it is now."""
        ...

    def contexts(self, server: int) -> Sequence[Context]:
        """Contexts of a server whose session may have another call, in the order of their numbers."""
        ...

    def blocks(self, server: int) -> Sequence[Block]:
        """The record of each device block that a context whose session has another call needs, or a call that waits, by id."""
        ...

    def tier_free(self, server: int, tier: TierName) -> int:
        """Blocks of a tier, as this server reaches it, that keep nothing."""
        ...

    def transfer_ns(self, server: int, tier: TierName, blocks: int, *, inwards: bool) -> int:
        """Time that moving blocks in one run would take if what is under way on the direction were done first, in ns."""
        ...

    def prefill_ns(self, server: int, tokens: int, before: int) -> int:
        """Modelled time of a step that computes this many tokens after `before` others, beside what runs, in ns."""
        ...

    def step_ns(self, server: int) -> int:
        """Modelled time of a step that decodes once for every request that runs, in ns; 0 if none does."""
        ...


# -- notices -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallEnded:
    """A call of a context has ended; its blocks are free but keep what they have.

    Attributes:
        event: its event.
        context: its context.
        tools: names of the tools that the call asked for, sorted.
        last: whether its session is known to have no call left.
    """

    event: int
    context: int
    tools: tuple[str, ...]
    last: bool


@dataclass(frozen=True)
class ToolStarted:
    """A tool of a context was started: an operation that does not run on the engine, asked for by a call of the context.

    Attributes:
        event: its event.
        context: the context.
        tool: its name.
    """

    event: int
    context: int
    tool: str


@dataclass(frozen=True)
class ToolEnded:
    """A tool of a context has ended.

    Attributes:
        event: its event.
        context: the context.
        tool: its name.
        took_ns: how long it took, in ns.
    """

    event: int
    context: int
    tool: str
    took_ns: int


@dataclass(frozen=True)
class CallReady:
    """A call was submitted and routed.

    Attributes:
        call: the call.
    """

    call: Call


@dataclass(frozen=True)
class Pressure:
    """A server could not admit its next request for want of blocks, or preempted one, since its last policy instant.

    Attributes:
        server: the server.
        missing: blocks that its next request lacks; 0 if it would fit now.
    """

    server: int
    missing: int


@dataclass(frozen=True)
class Timer:
    """A time that the policy asked for has come.

    Attributes:
        context: the context that it was asked for.
    """

    context: int


@dataclass(frozen=True)
class Moved:
    """A transfer of a context has ended.

    Attributes:
        context: the context.
        tier: the tier.
        inwards: whether it came into the device.
    """

    context: int
    tier: TierName
    inwards: bool


Notice = CallEnded | ToolStarted | ToolEnded | CallReady | Pressure | Timer | Moved


# -- actions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keep:
    """Hold the context's device blocks until a time, its next admission, or a `Release`; for ever if None."""

    until_ns: int | None = None


@dataclass(frozen=True)
class Release:
    """Hold them no longer: they can be evicted, the last block first."""


@dataclass(frozen=True)
class Offload:
    """Copy the context's blocks to a tier; then release them, and with `drop` let them be taken first, keeping nothing."""

    tier: TierName
    drop: bool = True


@dataclass(frozen=True)
class Prefetch:
    """Copy what follows the context's device blocks back from lower tiers, and hold it as `Keep` does."""

    until_ns: int | None = None


@dataclass(frozen=True)
class Drop:
    """Let a tier forget the context's blocks."""

    tier: TierName


@dataclass(frozen=True)
class Demote:
    """Let the context's free device blocks be taken before all others; they keep what they have until then."""


@dataclass(frozen=True)
class Reserve:
    """On a server, leave the last so many free blocks to calls that are critical. The question is about the server."""

    blocks: int


@dataclass(frozen=True)
class Hold:
    """Pass the call over until `Unhold`, or until its server has nothing else to do."""


@dataclass(frozen=True)
class Unhold:
    """Let the call be admitted again."""


@dataclass(frozen=True)
class Wake:
    """Give a `Timer` notice at this time, or as soon as possible after now."""

    at_ns: int


@dataclass(frozen=True)
class Reuse:
    """Begin the call with tokens that are there though they are no prefix hit; approximate content.

    Attributes:
        tokens: tokens of its prompt, after its prefix hits, that need not be computed.
        borrow: blocks of another context's whose memory it shares for them; 0 for none.
        lender: that context, on the same server.
        master: instead of a context, a call before it on the same server: it shares that call's blocks if that runs by then.
        first: ordinal of the first of these blocks there.
        extra: blocks it takes beside those that hold its tokens: its differences from what it borrows.
        charge_ns: time that adapting the tokens adds to the step that admits it, in ns.
    """

    tokens: int
    borrow: int = 0
    lender: int | None = None
    master: int | None = None
    first: int = 0
    extra: int = 0
    charge_ns: int = 0


Action = Keep | Release | Offload | Prefetch | Drop | Demote | Reserve | Hold | Unhold | Wake | Reuse


@dataclass(frozen=True)
class Question:
    """Something to decide.

    Attributes:
        context: the context that it is about; None if it is about a server.
        inputs: the numbers that the answer depends on, all of them.
        event: the call that it is about, if it is about one that waits.
        server: the server that it is about, if it is about one; the only answer is `Reserve` then. It joins the inputs, as
            `server`.
    """

    context: int | None
    inputs: Mapping[str, Value]
    event: int | None = None
    server: int | None = None


class Policy(ABC):
    """A KV lifecycle policy.

    Attributes:
        name: its name.
        rule: what it does, in one sentence.
        source: where the rule is from.
        tiers: tiers that it cannot do without.
        pieces: whether it looks at the pieces of prompts.
        Settings: its settings, a document whose members all have defaults.
        notices: what it wants to be told of.

    Args:
        settings: its settings.
        facts: what it may know of the engine.
    """

    name: ClassVar[str]
    rule: ClassVar[str]
    source: ClassVar[str]
    tiers: ClassVar[frozenset[TierName]] = frozenset()
    pieces: ClassVar[bool] = False
    Settings: ClassVar[type[Document]] = Document
    notices: ClassVar[frozenset[type[Notice]]]

    def __init__(self, settings: Document, facts: Facts) -> None:
        self.settings = settings
        self.facts = facts

    @abstractmethod
    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """The decisions that a notice asks for; here a policy keeps its own history."""

    @abstractmethod
    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """The answer to a question: it depends on the inputs, the settings and the facts alone."""
