"""What operations belong to and share, while a trace is made: artifacts, models, tasks, stages, sessions, states."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from semtrace.errors import FormatError
from semtrace.records import chat
from semtrace.records.document import canonical_json
from semtrace.records.enums import (
    AccessMode,
    Outcome,
    StageTemplate,
    StateLifetime,
    StateScope,
    VersionMode,
)
from semtrace.records.trace import MemoryContent
from semtrace.records.trace_tables import TRACE_TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = dict[str, Any]


class EntityRows:
    """The rows of a trace in the making, and those of its tables whose rows do not follow from one another."""

    def __init__(self) -> None:
        self.content = MemoryContent()
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self._artifacts: dict[tuple[bytes, str], int] = {}
        self._models: dict[str, int] = {}
        self._states: dict[tuple[str, str, int | None], int] = {}
        self._versions: dict[int, int] = defaultdict(int)

    def _add(self, table: str, row: Row) -> int:
        _known_columns(table, row)
        rows = self.rows[table]
        rows.append(row)
        return len(rows) - 1

    def _update(self, table: str, row: int, columns: Row) -> None:
        _known_columns(table, columns)
        self.rows[table][row].update(columns)

    # -- artifacts, models, tasks, stages, sessions ---------------------------------------------------------

    def artifact(self, content: bytes | str, media_type: str | None = None) -> int:
        """Keep a piece of content; equal content of one media type is kept once.

        Without a media type it is text, or, where its bytes are not UTF-8, `application/octet-stream`.
        """
        try:
            raw = content.encode() if isinstance(content, str) else content
        except UnicodeEncodeError as error:
            raise FormatError(
                f"text that has no UTF-8 form: {error}",
                code="text.surrogate",
                hint="replace lone surrogates before, and say so in the loss report",
            ) from error
        if media_type is None:
            media_type = chat.TEXT_TYPE if isinstance(content, str) or _is_text(raw) else chat.BYTES_TYPE
        digest = blake3(raw).digest()
        found = self._artifacts.get((digest, media_type))
        if found is None:
            found = self._add("artifacts", {"digest": digest, "size": len(raw), "media_type": media_type})
            self._artifacts[digest, media_type] = found
            self.content[digest] = raw
        return found

    def json_artifact(self, value: object) -> int:
        """Keep a JSON value in its canonical form."""
        return self.artifact(canonical_json(value), chat.JSON_TYPE)

    def model(self, name: str, **shape: object) -> int:
        """The model of this name; what a call says of its shape (columns of `models`) is added to what is known.

        Raises:
            FormatError: the call contradicts an earlier one.
        """
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = self._add("models", {"name": name})
        known = self.rows["models"][found]
        for column, value in shape.items():
            if known.get(column) not in (None, value):
                raise FormatError(
                    f"model {name} has {column} {known[column]} and {value}",
                    code="model.shape",
                    path="models",
                )
        self._update("models", found, shape)
        return found

    def task(
        self,
        name: str,
        *,
        arrival_ns: int | None = None,
        deadline_ns: int | None = None,
        input: str | None = None,  # noqa: A002  # the column's name
        output: str | None = None,
        outcome: Outcome = Outcome.UNKNOWN,
        **columns: object,
    ) -> int:
        """Add a task; further columns of `tasks` by name."""
        row: Row = {
            "name": name,
            "arrival_ns": arrival_ns,
            "deadline_ns": deadline_ns,
            "outcome": outcome,
            **columns,
        }
        row["input"] = None if input is None else self.artifact(input)
        row["output"] = None if output is None else self.artifact(output)
        return self._add("tasks", row)

    def update_task(self, task: int, *, output: str | None = None, **columns: object) -> None:
        """Set columns of a task that became known later."""
        self._update("tasks", task, columns)
        if output is not None:
            self.rows["tasks"][task]["output"] = self.artifact(output)

    def stage(
        self,
        task: int,
        name: str,
        *,
        template: StageTemplate = StageTemplate.UNKNOWN,
        template_extension: str | None = None,
        parent: int | None = None,
        iteration: int = 0,
    ) -> int:
        """Add a stage, nested in `parent` if given."""
        return self._add(
            "stages",
            {
                "task": task,
                "parent": parent,
                "template": template,
                "template_extension": template_extension,
                "name": name,
                "iteration": iteration,
            },
        )

    def session(
        self,
        task: int,
        *,
        agent: str | None = None,
        model: int | None = None,
        parent_operation: int | None = None,
        name: str | None = None,
    ) -> int:
        """Add a session."""
        return self._add(
            "sessions",
            {
                "task": task,
                "agent": agent,
                "model": model,
                "parent_operation": parent_operation,
                "name": name,
            },
        )

    def update_session(self, session: int, **columns: object) -> None:
        """Set columns of a session that became known later."""
        self._update("sessions", session, columns)

    # -- states ----------------------------------------------------------------------------------------------

    def state(
        self,
        namespace: str,
        name: str,
        *,
        scope: StateScope = StateScope.SHARED,
        lifetime: StateLifetime = StateLifetime.TASK,
        task: int | None = None,
    ) -> int:
        """The state of this name (in this task, if one is given); made at first call."""
        key = (namespace, name, task)
        found = self._states.get(key)
        if found is None:
            row = {"namespace": namespace, "name": name, "scope": scope, "lifetime": lifetime}
            found = self._states[key] = self._add("states", row)
        return found

    def version(
        self,
        state: int,
        content: str | bytes | None = None,
        *,
        base: int | None = None,
        mode: VersionMode = VersionMode.REPLACE,
        writer: int | None = None,
        media_type: str | None = None,
    ) -> int:
        """Add the next version of a state; one with a writer is a write access of the writer too."""
        number = self._versions[state]
        self._versions[state] += 1
        version = self._add(
            "state_versions",
            {
                "state": state,
                "version": number,
                "base": base,
                "mode": mode,
                "artifact": None if content is None else self.artifact(content, media_type),
                "writer": writer,
            },
        )
        if writer is not None:
            self._add(
                "state_accesses", {"operation": writer, "state_version": version, "mode": AccessMode.WRITE}
            )
        return version

    def read(self, operation: int, version: int) -> None:
        """Record that an operation read a version of a state; its writer becomes a state dependency."""
        self._add(
            "state_accesses", {"operation": operation, "state_version": version, "mode": AccessMode.READ}
        )


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _known_columns(table: str, row: Mapping[str, object]) -> None:
    unknown = sorted(set(row) - set(TRACE_TABLE[table].by_name))
    if unknown:
        raise TypeError(f"{table} has no column {', '.join(unknown)}")
