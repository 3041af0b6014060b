"""What operations worked on: the files of the workspace, and the texts that a request repeats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semtrace.errors import FormatError

from .matching import LEAST, Text, TextIndex, spans_in, texts_of
from .workspace import Names, documents_in

if TYPE_CHECKING:
    from semtrace.build import Span

    from .memory import Entry
    from .run import Written
    from .run_rows import RunRows
    from .units import Unit


@dataclass(eq=False)
class _File:
    """One writing of a file: its place in the log, who wrote it, its content if known, its version."""

    written: Written
    unit: Unit
    content: bytes | None = None
    version: int | None = None


@dataclass
class _Files:
    """The files that a run wrote, by name, in order."""

    names: Names
    by_name: dict[str, list[_File]] = field(default_factory=dict)


@dataclass(eq=False)
class _Remembered:
    """A role's memory, and the texts of its first entries to look for."""

    replica: list[Entry]
    taken: int = 0
    index: TextIndex = field(default_factory=TextIndex)


class Material:
    """Adds the files of a run and the requests of its calls to a trace."""

    def __init__(self, into: RunRows) -> None:
        self.builder, self.loss, self.task = into.builder, into.loss, into.task
        self.run, self.sources = into.run, into.sources
        self.units, self.operations, self.memories = into.units, into.operations, into.memories
        self.writer = into.writer
        self.read_versions: dict[int, set[int]] = {}

    def add(self, every: list[Unit]) -> None:
        """Add the versions of all files, the requests of these operations, and what they read."""
        files = self._files()
        self._requests(every, files)
        self._dependencies(files)

    def _files(self) -> _Files:
        team, workspace = self.sources.team, self.sources.workspace
        carried: dict[int, dict[str, str]] = {}
        for sent in self.run.sent:
            if sent.turn is not None:
                carried.setdefault(id(sent.turn), {}).update(documents_in(sent.message.content))
        known = {name for documents in carried.values() for name in documents}
        files = _Files(Names(self.run, team.workdir if team else None, workspace, known))
        for written in self.run.written:
            name = files.names.name(written.path)
            unit = self._file_writer(written)
            if unit is None:
                self.loss.add(
                    "file.unowned",
                    "lost",
                    "a file was written by nobody whose turn it was",
                    where=written.where,
                )
                continue
            content = carried.get(id(written.turn), {}).get(name)
            files.by_name.setdefault(name, []).append(
                _File(written, unit, content.encode() if content is not None else None)
            )
        for name, writings in sorted(files.by_name.items()):
            if workspace is not None and name in workspace.files:
                writings[-1].content = workspace.files[name]
            self._file_versions(name, writings)
        if workspace is not None:
            left = sorted(set(workspace.files) - set(files.by_name))
            for name in left:
                self._unlogged_file(name, workspace.files[name])
        return files

    def _file_writer(self, written: Written) -> Unit | None:
        if written.call is not None and written.turn is not None:
            return next(unit for unit in self.units[id(written.turn)] if unit.call is written.call)
        return self.writer(written.turn, written.at)

    def _file_versions(self, name: str, writings: list[_File]) -> None:
        state = self.builder.state("metagpt/workspace", name, task=self.task)
        base: int | None = None
        for writing in writings:
            if writing.content is None:
                self.loss.add(
                    "file.content",
                    "unknown",
                    "what a file held is not in the sources",
                    where=writing.written.where,
                )
            writing.version = base = self.builder.version(
                state,
                writing.content,
                base=base,
                writer=self.operations[id(writing.unit)],
            )

    def _unlogged_file(self, name: str, content: bytes) -> None:
        """A file of the workspace that no line speaks of: written by the call whose output has its text."""
        text = content.decode("utf-8", "replace").strip()
        if len(text) >= LEAST:
            for turn in self.run.turns:
                for unit in self.units[id(turn)]:
                    output = unit.call.output if unit.call else None
                    if output is not None and any(text in piece for piece in [output, *_members(output)]):
                        state = self.builder.state("metagpt/workspace", name, task=self.task)
                        self.builder.version(state, content, writer=self.operations[id(unit)])
                        self.loss.add(
                            "file.unlogged",
                            "inferred",
                            "a file that no line of the log speaks of: taken to be by the call whose output holds its text",
                            where=name,
                        )
                        return
        self.loss.add(
            "file.unlogged",
            "lost",
            "a file of the workspace that no line of the log speaks of, and whose text no output holds",
            where=name,
        )

    # -- requests -------------------------------------------------------------------------------------------------

    def _requests(self, every: list[Unit], files: _Files) -> None:
        remembered = {role: _Remembered(replica) for role, replica in self.memories.replicas.items()}
        for unit in sorted(every, key=lambda each: each.at):
            call = unit.call
            if call is None or call.messages is None:
                continue
            in_files = self._files_before(unit, files)
            indexes = [self._made_before(unit), TextIndex(in_files)]
            if unit.turn.role in remembered:
                indexes.insert(0, self._remembered_by(remembered[unit.turn.role], unit))
            sources: dict[int, list[Span]] = {}
            for place, message in enumerate(call.messages):
                content = message.get("content")
                if not isinstance(content, str):
                    continue
                found = spans_in(content, *indexes)
                sources[place] = [span for span, _ in found]
                for _, text in found:
                    if text in in_files:
                        self._read_file(unit, in_files[text])
            try:
                self.builder.request(self.operations[id(unit)], call.messages, sources=sources)
            except FormatError as error:
                self.loss.add(
                    "request.form",
                    "lost",
                    f"a request that has no place in the format: {error.message}",
                    where=call.where,
                )

    def _remembered_by(self, memory: _Remembered, unit: Unit) -> TextIndex:
        """What its role remembers when a request is made; to be asked for in order of the requests."""
        while memory.taken < len(memory.replica) and memory.replica[memory.taken].at <= unit.at:
            entry = memory.replica[memory.taken]
            memory.taken += 1
            writer = entry.unit or self.writer(entry.turn, entry.at)
            if writer is not None and _over(writer, unit):
                for text in texts_of(
                    entry.message.content, self.operations[id(writer)], self._output(writer)
                ):
                    memory.index.add(text)
        return memory.index

    def _made_before(self, unit: Unit) -> TextIndex:
        """What its role made earlier in its turn."""
        index = TextIndex()
        for earlier in self.units[id(unit.turn)]:
            if earlier.call and earlier.call.output is not None and _over(earlier, unit):
                output = earlier.call.output
                for text in texts_of(output, self.operations[id(earlier)], output):
                    index.add(text)
        return index

    def _files_before(self, unit: Unit, files: _Files) -> dict[Text, _File]:
        """The texts of the files as they were when the request was made."""
        texts: dict[Text, _File] = {}
        for writings in files.by_name.values():
            before = [each for each in writings if each.written.at < unit.at]
            if before and before[-1].content is not None and _over(before[-1].unit, unit):
                text = before[-1].content.decode("utf-8", "replace")
                if len(text) >= LEAST:
                    writer = before[-1].unit
                    texts[Text(text, self.operations[id(writer)], self._output(writer))] = before[-1]
        return texts

    def _output(self, unit: Unit) -> str | None:
        published = unit.turn.published
        return unit.call.output if unit.call else published.content if published else None

    def _read_file(self, unit: Unit, writing: _File) -> None:
        if writing.version is None:
            return
        operation = self.operations[id(unit)]
        read = self.read_versions.setdefault(id(unit.turn), set())
        read.add(writing.version)
        self.builder.read(operation, writing.version)

    def _dependencies(self, files: _Files) -> None:
        """Files that a file was recorded to depend on were read for it, if no request has shown that already."""
        workspace = self.sources.workspace
        for name, writings in files.by_name.items():
            writing = writings[-1]
            on = set(writing.written.depends_on)
            if workspace is not None:
                on |= set(workspace.depends_on.get(name, ()))
            for each in sorted(on):
                before = [
                    other
                    for other in files.by_name.get(files.names.name(each), ())
                    if other.written.at < writing.written.at and other.version is not None
                ]
                if not before:
                    self.loss.add(
                        "dependency.unknown",
                        "lost",
                        "a file depends on one that the sources do not show",
                        where=f"{name}: {each}",
                    )
                    continue
                unit, other = writing.unit, before[-1]
                if other.unit is unit:
                    continue
                if other.version in self.read_versions.get(id(unit.turn), ()):
                    continue
                if _over(other.unit, unit):
                    self._read_file(unit, other)


def _over(earlier: Unit, unit: Unit) -> bool:
    return earlier is not unit and earlier.ended_at is not None and earlier.ended_at <= unit.at


def _members(output: str) -> list[str]:
    """The strings of the JSON that a model returned, as its role took them: without the marks around it."""
    inner = output.strip().removeprefix("[CONTENT]").removesuffix("[/CONTENT]").strip()
    return [text.text for text in texts_of(inner, 0, None)]
