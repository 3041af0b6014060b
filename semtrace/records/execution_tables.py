"""The tables of an execution: what happened to a trace when it ran.

Times are in ns from the execution's own origin. `instances` and `events` are always there; the rest are
detail levels, each with a digest of its own.
"""

from __future__ import annotations

from typing import Final

from semtrace.records.enums import (
    BlockAction,
    Direction,
    EventOutcome,
    Evidence,
    Failure,
    FinishReason,
    Outcome,
    Phase,
    Tier,
)
from semtrace.records.schema import Column, Level, Physical, Table, enum, ref


def _time(number: int, name: str, doc: str) -> Column:
    return Column(number, name, Physical.I64, doc, nullable=True, level=Level.RUN)


def _count(number: int, name: str, doc: str) -> Column:
    return Column(number, name, Physical.I64, doc, nullable=True, level=Level.RUN)


def _evidence(number: int, of: str) -> Column:
    return enum(number, f"{of}_evidence", Evidence, f"How {of}_ns is known.", level=Level.NONE)


def _run(number: int, name: str, kind: Physical, doc: str, *, nullable: bool = False) -> Column:
    return Column(number, name, kind, doc, nullable=nullable, level=Level.RUN)


INSTANCES: Final = Table(
    101,
    "instances",
    "Instance",
    "A copy of a task in a run; sorted by (task, instance).",
    (
        ref(1, "task", "tasks", "The task that it is a copy of.", level=Level.RUN),
        _run(2, "instance", Physical.U32, "Ordinal among the copies of the task, from 0."),
        _time(3, "arrival_ns", "When it arrived, in ns."),
        enum(4, "outcome", Outcome, "How it ended.", level=Level.RUN),
    ),
)

EVENTS: Final = Table(
    102,
    "events",
    "Event",
    "What happened to one operation of one instance; sorted by (instance, operation), unique.",
    (
        ref(1, "instance", "instances", "The instance.", level=Level.RUN),
        ref(2, "operation", "operations", "The operation.", level=Level.RUN),
        _time(3, "ready_ns", "When its last predecessor released it, in ns."),
        _time(4, "released_ns", "Ready plus its external delay, in ns."),
        _time(5, "submitted_ns", "When it was handed to the backend, or a tool was started, in ns."),
        _time(6, "scheduled_ns", "When the backend first worked on it, in ns."),
        _time(7, "first_token_ns", "When its first output token was there, in ns."),
        _time(8, "finished_ns", "When it ended, in ns."),
        _evidence(9, "ready"),
        _evidence(10, "released"),
        _evidence(11, "submitted"),
        _evidence(12, "scheduled"),
        _evidence(13, "first_token"),
        _evidence(14, "finished"),
        enum(15, "outcome", EventOutcome, "Its terminal state.", level=Level.RUN),
        _count(16, "prompt_tokens", "Tokens of its input, as run."),
        _count(17, "cached_tokens", "Prompt tokens found in a cache."),
        _count(18, "computed_prompt_tokens", "Prompt tokens computed, recomputation included."),
        _count(19, "output_tokens", "Tokens of its output, as run."),
        ref(
            20,
            "output_ids",
            "artifacts",
            "Token ids of its output, in the execution's own artifacts.",
            nullable=True,
            level=Level.NONE,
        ),
        _run(21, "preemptions", Physical.U32, "How often it was preempted.", nullable=True),
        _run(22, "attempts", Physical.U32, "How often it was submitted.", nullable=True),
        _run(23, "server", Physical.U32, "The server that ran it.", nullable=True),
        Column(
            24, "request_id", Physical.STRING, "Its id in the server's log.", nullable=True, level=Level.NONE
        ),
        _time(25, "preempted_ns", "Time between its preemptions and the steps that resumed it, in ns."),
        _count(26, "loaded_tokens", "Prompt tokens whose KV was loaded from another tier."),
        _count(27, "reused_tokens", "Prompt tokens whose KV was reused though it is not a prefix hit."),
        enum(28, "finish_reason", FinishReason, "Why the model stopped.", nullable=True, level=Level.RUN),
        enum(29, "failure", Failure, "What kept it from an answer in full.", nullable=True, level=Level.RUN),
    ),
)

STEPS: Final = Table(
    103,
    "steps",
    "Step",
    "One scheduler step of one server; sorted by (server, index).",
    (
        _run(1, "server", Physical.U32, "The server."),
        _run(2, "index", Physical.U32, "Ordinal among the server's steps, from 0."),
        _run(3, "start_ns", Physical.I64, "When it started, in ns."),
        _run(4, "end_ns", Physical.I64, "When it ended, in ns."),
        _run(5, "tokens", Physical.I64, "Tokens scheduled."),
        _run(6, "requests", Physical.U32, "Requests scheduled."),
        _run(7, "free_blocks", Physical.U32, "Free device blocks after scheduling."),
    ),
)

STEP_RUNS: Final = Table(
    104,
    "step_runs",
    "StepRun",
    "A maximal run of consecutive steps in which an operation got the same number of tokens in the same phase.",
    (
        ref(1, "event", "events", "The operation's event.", level=Level.RUN),
        _run(2, "first_step", Physical.U32, "Index of the run's first step on the event's server."),
        _run(3, "count", Physical.U32, "Steps in the run."),
        _run(4, "start_position", Physical.I64, "Tokens of the request computed before the run."),
        _run(5, "tokens_per_step", Physical.I64, "Tokens computed in each step."),
        enum(6, "phase", Phase, "Prefill or decode.", level=Level.RUN),
    ),
)

BLOCKS: Final = Table(
    105,
    "blocks",
    "BlockEvent",
    "Something that happened to KV blocks; sorted by (time_ns, sequence).",
    (
        _run(1, "time_ns", Physical.I64, "When, in ns."),
        _run(2, "sequence", Physical.U32, "Order among the rows of one instant."),
        _run(3, "server", Physical.U32, "The server."),
        enum(4, "tier", Tier, "The tier.", level=Level.RUN),
        enum(5, "action", BlockAction, "What happened.", level=Level.RUN),
        ref(
            6,
            "event",
            "events",
            "The event of the operation that it was done for.",
            nullable=True,
            level=Level.RUN,
        ),
        _run(7, "blocks", Physical.U32, "How many blocks."),
        _run(8, "bytes", Physical.I64, "How many bytes."),
        _run(9, "reason", Physical.STRING, "Why, in the policy's words.", nullable=True),
        _run(
            10,
            "first_block",
            Physical.U32,
            "Id of the first of the blocks in its tier; their ids are consecutive.",
            nullable=True,
        ),
        _run(
            11,
            "position",
            Physical.U32,
            "Ordinal of the first of the blocks among those of the operation's tokens; consecutive too.",
            nullable=True,
        ),
        ref(12, "transfer", "transfers", "The transfer that moves them.", nullable=True, level=Level.RUN),
    ),
)

TRANSFERS: Final = Table(
    106,
    "transfers",
    "Transfer",
    "KV moved over a link; sorted by (start_ns, server, link, direction, end_ns).",
    (
        _run(1, "server", Physical.U32, "The server."),
        _run(2, "link", Physical.STRING, "The link."),
        enum(3, "direction", Direction, "Out of the device, or into it.", level=Level.RUN),
        _run(4, "start_ns", Physical.I64, "When it started, in ns."),
        _run(5, "end_ns", Physical.I64, "When it ended, in ns."),
        _run(6, "bytes", Physical.I64, "Bytes moved."),
        ref(
            7,
            "event",
            "events",
            "The event of the operation that it was done for.",
            nullable=True,
            level=Level.RUN,
        ),
        _run(8, "blocks", Physical.U32, "Blocks moved.", nullable=True),
    ),
)

DECISIONS: Final = Table(
    107,
    "decisions",
    "Decision",
    "A decision of a policy, with all it saw; sorted by (time_ns, sequence).",
    (
        _run(1, "time_ns", Physical.I64, "When, in ns."),
        _run(2, "sequence", Physical.U32, "Order among the rows of one instant."),
        _run(3, "policy", Physical.STRING, "The policy."),
        ref(
            4,
            "event",
            "events",
            "The event of the operation that it concerned.",
            nullable=True,
            level=Level.RUN,
        ),
        _run(5, "inputs", Physical.STRING, "What it saw, canonical JSON."),
        _run(6, "choice", Physical.STRING, "What it chose."),
    ),
)

EXECUTION_TABLES: Final[tuple[Table, ...]] = (
    INSTANCES,
    EVENTS,
    STEPS,
    STEP_RUNS,
    BLOCKS,
    TRANSFERS,
    DECISIONS,
)

EXECUTION_TABLE: Final[dict[str, Table]] = {table.name: table for table in EXECUTION_TABLES}
