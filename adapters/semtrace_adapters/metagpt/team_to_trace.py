"""A serialised team, or a workspace, without the log of its run: what was said and left, not how it came about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.records.enums import EntityKind, Evidence, OperationKind, StateScope, VersionMode

from .runs_to_trace import MESSAGE_TYPE, task_name

if TYPE_CHECKING:
    from semtrace.build.builder import TraceBuilder
    from semtrace_adapters.base import LossReport

    from .events import Message
    from .team import Remembered, Team
    from .workspace import Workspace


def add_team(builder: TraceBuilder, team: Team, ordinal: int, loss: LossReport) -> None:
    """Add a team of which only the memories are left.

    For each message that a role wrote there is one operation, of unknown kind and duration, which read what the role
    remembered before it.
    """
    task = builder.task(task_name(ordinal), input=team.idea)
    builder.annotate(EntityKind.TASK, task, "metagpt/team", team.path.name)
    operations: dict[str, int] = {}
    for remembered in team.roles:
        session = builder.session(task, agent=remembered.profile, name=remembered.role)
        if remembered.class_name:
            builder.annotate(EntityKind.SESSION, session, "metagpt/class", remembered.class_name)
        for message in remembered.storage:
            if message.id not in operations and _wrote(remembered, message):
                operation = builder.operation(
                    task,
                    OperationKind.TRANSFORM,
                    message.action or "act",
                    session=session,
                    duration_evidence=Evidence.MISSING,
                )
                if message.content:
                    builder.output(operation, message.content)
                builder.annotate(EntityKind.OPERATION, operation, "metagpt/message", message.id)
                operations[message.id] = operation
    if operations:
        loss.add(
            "operations.opaque",
            "unknown",
            "an action that is known by its message only: whether and how often it asked a model, when it ran and how long is "
            "not in a serialised team",
            count=len(operations),
            where=team.path.name,
        )
    for remembered in team.roles:
        _memory(builder, task, remembered, operations, loss)


def _wrote(role: Remembered, message: Message) -> bool:
    if message.from_user:
        return False
    if message.sent_from:
        return message.sent_from in {role.class_name, role.role, role.profile}
    return message.role in {role.role, role.profile}


def _memory(
    builder: TraceBuilder, task: int, role: Remembered, operations: dict[str, int], loss: LossReport
) -> None:
    if not role.storage:
        return
    state = builder.state("metagpt/memory", role.role, scope=StateScope.PRIVATE, task=task)
    base: int | None = None
    unread: list[int] = []
    for message in role.storage:
        writer = operations.get(message.id)
        if writer is None and not message.from_user:
            loss.add(
                "message.publisher",
                "unknown",
                "a message that no role of the team wrote",
                where=f"{role.role}: {message.cause_by}",
            )
        if writer is not None and _wrote(role, message):
            for version in unread:
                builder.read(writer, version)
            unread.clear()
        base = builder.version(
            state,
            message.raw,
            base=base,
            mode=VersionMode.REPLACE if base is None else VersionMode.APPEND,
            writer=writer,
            media_type=MESSAGE_TYPE,
        )
        builder.annotate(EntityKind.STATE_VERSION, base, "metagpt/message", message.id)
        unread.append(base)


def add_workspace(builder: TraceBuilder, workspace: Workspace, loss: LossReport) -> None:
    """Add a workspace of which no run is known: its files as they are, and what they were recorded to depend on."""
    task = builder.task(f"workspace {workspace.root.name}")
    for name, content in workspace.files.items():
        state = builder.state("metagpt/workspace", name, task=task)
        version = builder.version(state, content)
        for each in workspace.depends_on.get(name, ()):
            builder.annotate(EntityKind.STATE_VERSION, version, "metagpt/depends_on", each)
    loss.add(
        "workspace.alone",
        "unknown",
        "a workspace without the log of its run: who wrote its files, and when, is not in it; the trace has no operations",
        where=workspace.root.name,
    )
