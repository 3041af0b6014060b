"""MetaGPT 0.8: text logs, loguru's JSON, serialised teams, workspaces and configurations, in any combination."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semtrace.build import TraceBuilder
from semtrace.errors import FormatError, UsageError
from semtrace.records.enums import EntityKind
from semtrace_adapters.base import ImportOptions, ImportResult, LossReport, finish
from semtrace_adapters.source_lines import is_small

from .config import Config, read_config
from .events import Publish, events_of
from .lines import HEADER, Log, merge_logs, read_json_log, read_text, read_text_log
from .run import Run, split_runs
from .run_rows import Sources
from .runs_to_trace import RunToTrace
from .team import Team, looks_like_team, read_team, totals_of
from .team_to_trace import add_team, add_workspace
from .turns import read_run
from .workspace import DEPENDENCIES, Workspace, files_of, read_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD: Final = 1 << 16
_MOST_FILES: Final = 20_000
_MOST_DETECTED: Final = 2_000
_CERTAINTY: Final = {"text": 95, "json": 96, "team": 90, "workspace": 60, "config": 20, "costs": 20}


@dataclass
class _Found:
    """The files of each kind among the sources."""

    text: list[Path] = field(default_factory=list)
    json: list[Path] = field(default_factory=list)
    team: list[Path] = field(default_factory=list)
    workspace: list[Path] = field(default_factory=list)
    config: list[Path] = field(default_factory=list)
    costs: list[Path] = field(default_factory=list)
    other: list[Path] = field(default_factory=list)

    def add(self, kind: str | None, path: Path) -> None:
        (self.other if kind is None else getattr(self, kind)).append(path)


def kind_of(path: Path) -> str | None:
    """What a file is, by its first 64 KiB, or by the whole of a JSON document; None if nothing of MetaGPT's."""
    try:
        if not path.is_file():  # a pipe would wait for ever
            return None
        with path.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError:
        return None
    text = head.decode("utf-8", "replace")
    start = text.lstrip()
    if start.startswith("{"):
        return _kind_of_json(path, start)
    if any(found["module"].startswith("metagpt.") for found in HEADER.finditer(text.replace("\x1b[0m", ""))):
        return "text"
    if "\x1b[" in text and " | " in text and "metagpt." in text:
        return "text"
    if path.suffix in {".yaml", ".yml"} and "llm:" in text:
        return "config"
    return None


def _kind_of_json(path: Path, start: str) -> str | None:
    for line in start.split("\n")[:50]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        record = entry.get("record") if isinstance(entry, dict) else None
        if isinstance(record, dict) and str(record.get("name", "")).startswith("metagpt."):
            return "json"
        if isinstance(entry, dict) and {"total_prompt_tokens", "total_cost"} <= set(entry):
            return "costs"
    if '"record"' in start[:_HEAD] and '"name": "metagpt.' in start:
        return "json"
    if '"env"' in start and '"roles"' in start:
        try:
            raw = path.read_bytes()
            if not is_small(raw):
                return "team"  # reading will say that it is too large
            return "team" if looks_like_team(json.loads(raw)) else None
        except (ValueError, RecursionError):
            return "team"  # a damaged one, which reading will say
        except OSError:
            return None
    return None


def find(paths: Sequence[Path], most: int = _MOST_FILES) -> _Found:
    """Sort files, and those in folders, by what they are; a folder with recorded dependencies is a workspace.

    Raises:
        UsageError: there are more files than `most`.
    """
    found = _Found()
    seen: set[Path] = set()
    for path in paths:
        for each in _files_in(path, found.workspace):
            real = Path(os.path.realpath(each))  # of a link to itself, too, `resolve` finds no end
            if real in seen:
                continue
            seen.add(real)
            if len(seen) > most:
                raise UsageError(
                    f"more than {most} files",
                    code="source.many",
                    path=str(path),
                    hint="name the recording itself",
                )
            found.add(kind_of(each), each)
    return found


def _files_in(path: Path, workspaces: list[Path]) -> Iterator[Path]:
    """The files to look at: the path itself, or those in the folder; workspaces are put apart."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        if DEPENDENCIES in names:
            if here.resolve() not in {each.resolve() for each in workspaces}:
                workspaces.append(here)
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name != ".git" and not (here / name).is_symlink())
        yield from (here / name for name in sorted(names))


class MetaGPTAdapter:
    """The adapter for MetaGPT; see the module's documentation."""

    name = "metagpt"
    version = "1"
    summary = (
        "MetaGPT 0.8: logs/*.txt, loguru JSON, team.json, workspace with .dependencies.json, config2.yaml"
    )

    def detect(self, paths: Sequence[Path]) -> int:
        """How sure it is that these are MetaGPT's: the surest of what it finds."""
        try:
            found = find(paths, _MOST_DETECTED)
        except (OSError, UsageError):
            return 0
        sure = [certainty for kind, certainty in _CERTAINTY.items() if getattr(found, kind)]
        return max(sure, default=0)

    def read(self, paths: Sequence[Path], options: ImportOptions) -> ImportResult:
        """Read recordings of one or more runs and put together what belongs together.

        Options: `model`, the name of the model that was called, where no source names it; `counts=share` gives calls that
        cannot be told apart equal parts of the token counts that they had together, so that the trace can be replayed.

        Raises:
            FormatError: nothing of MetaGPT's is in the sources.
            UsageError: a source cannot be read, or there is no such option.
        """
        known = ("model=NAME", "counts=share")
        options.refuse_unknown(self.name, known)
        if options.values.get("counts", "share") != "share":
            raise UsageError(
                f"no option counts={options.values['counts']}",
                code="adapter.option",
                hint=f"the options of {self.name} are: {', '.join(known)}",
            )
        for path in paths:
            if not path.exists():
                raise UsageError("no such file or folder", code="source.missing", path=str(path))
        return _Import(find(paths), options).result(paths)


class _Import:
    """One import: all sources read, then put together."""

    def __init__(self, found: _Found, options: ImportOptions) -> None:
        self.found, self.options = found, options
        self.loss = LossReport()
        logs = [*found.text, *found.json]
        above = os.path.commonpath([path.resolve().parent for path in logs]) if logs else ""
        self.labels = {path: path.resolve().relative_to(above).as_posix() for path in logs}

    def result(self, paths: Sequence[Path]) -> ImportResult:
        found, loss = self.found, self.loss
        sized = [(path, path.stat().st_size) for path in (*found.text, *found.json)]
        total, done = sum(size for _, size in sized), 0
        texts: list[Log] = []
        structured: list[Log] = []
        for path, size in sized:
            if path in found.text:
                texts.append(read_text_log(path, loss, self.labels[path]))
            else:
                structured.append(read_json_log(path, loss, self.labels[path]))
            done += size
            if self.options.progress:
                self.options.progress(done, total)
        teams = [read_team(path, loss) for path in found.team]
        workspaces = [read_workspace(path, loss) for path in found.workspace]
        runs = [
            run for lines in merge_logs(texts, structured, loss) for run in split_runs(events_of(lines, loss))
        ]
        if not runs and not teams and not workspaces:
            raise FormatError(
                "nothing in these sources is of a MetaGPT run",
                code="metagpt.nothing",
                path=", ".join(str(path) for path in paths),
                hint="give a log (logs/YYYYMMDD.txt or loguru's JSON), a team.json or a workspace",
            )
        for path in found.other:
            loss.add("source.ignored", "ignored", "a file that the adapter does not read", where=path.name)
        return self._put_together(runs, teams, workspaces)

    def _put_together(self, runs: list[Run], teams: list[Team], workspaces: list[Workspace]) -> ImportResult:
        loss = self.loss
        runs = _once(runs, loss)
        for ordinal, run in enumerate(runs):
            run.ordinal = ordinal
        zones = {run.events[0].line.utc for run in runs}
        origin = min((run.start_ns for run in runs), default=0)
        if False in zones:
            loss.add(
                "time.zone",
                "unknown",
                "a text log has local times and no offset from UTC"
                + ("; taken for UTC" if True in zones else ""),
            )
        builder = TraceBuilder(origin_unix_ns=origin if zones == {True} else None)
        prefixes = {prefix: role.role for team in teams for role in team.roles for prefix in role.prefixes}
        for run in runs:
            read_run(run, prefixes, loss, share=self.options.values.get("counts") == "share")
        assigned = self._assign(runs, teams, workspaces)
        done: dict[int, RunToTrace] = {}
        for run in runs:
            into = RunToTrace(builder, run, assigned[id(run)], origin, loss)
            before = done[id(run.continues)].memories if run.continues and id(run.continues) in done else None
            into.add(before)
            done[id(run)] = into
        for team in teams:
            if not any(sources.team is team for sources in assigned.values()):
                add_team(builder, team, len(builder.rows["tasks"]), loss)
        for workspace in workspaces:
            if not any(sources.workspace is workspace for sources in assigned.values()):
                add_workspace(builder, workspace, loss)
        if zones == {False}:
            builder.annotate(EntityKind.TRACE, 0, "metagpt/local_start_ns", str(origin))
        built = finish(builder, loss)
        files = [*self.found.text, *self.found.json, *self.found.team, *self.found.config, *self.found.costs]
        files += [workspace.root / DEPENDENCIES for workspace in workspaces]
        files += [workspace.root / name for workspace in workspaces for name in workspace.files]
        return ImportResult(built.trace, built.execution, loss.items(), files)

    def _assign(self, runs: list[Run], teams: list[Team], workspaces: list[Workspace]) -> dict[int, Sources]:
        """What belongs to each run: the team that remembers its messages, the workspace that has its files."""
        assigned = {id(run): Sources() for run in runs}
        for run in runs:
            sources = assigned[id(run)]
            sources.config = self._config(run)
            ids = {sent.message.id for sent in run.sent}
            for team in teams:
                # The last run whose messages it has: a team is serialised when it is done.
                later = any(
                    other.start_ns > run.start_ns
                    and team.message_ids & {sent.message.id for sent in other.sent}
                    for other in runs
                )
                if team.message_ids & ids and not later:
                    sources.team = team
                    sources.totals = (team.prompt_tokens, team.output_tokens)
            if run.continues is not None:
                sources.totals = (None, None)  # they count the runs before, too
        for workspace in workspaces:
            best = max(runs, key=lambda run: files_of(run, workspace), default=None)
            if best is not None and files_of(best, workspace):
                assigned[id(best)].workspace = workspace
        for path in self.found.costs:
            self._costs(path, runs, assigned)
        return assigned

    def _config(self, run: Run) -> Config | None:
        """The configuration nearest to the run's log."""
        config: Config | None = None
        if self.found.config:
            name = run.events[0].line.where.rpartition(":")[0]
            logs = [path for path, label in self.labels.items() if label == name]
            near = max(
                self.found.config,
                key=lambda path: max(
                    (len(os.path.commonpath([path.parent, log.parent])) for log in logs), default=0
                ),
            )
            config = read_config(near)
        model = self.options.values.get("model")
        if model:
            return Config(model, config.settings if config else {})
        return config

    def _costs(self, path: Path, runs: list[Run], assigned: dict[int, Sources]) -> None:
        """Totals of tokens, one line for each run, where there are as many lines as runs."""
        entries: list[Any] = []
        for line in read_text(path)[0].splitlines():
            try:
                entries.append(json.loads(line))
            except (ValueError, RecursionError):
                self.loss.add("costs.unreadable", "lost", "a line of totals that is no JSON", where=path.name)
        if len(entries) != len(runs) or len(self.found.costs) > 1:
            self.loss.add(
                "costs.ignored", "ignored", "totals that do not say which run they are of", where=path.name
            )
            return
        for run, entry in zip(runs, entries, strict=True):
            if assigned[id(run)].totals == (None, None):
                assigned[id(run)].totals = totals_of(entry)


def _once(runs: list[Run], loss: LossReport) -> list[Run]:
    """The runs in order of their start, each once: a log may lie among the sources twice, whole or in part."""
    kept: list[Run] = []
    seen: set[str] = set()
    for run in sorted(runs, key=lambda each: (each.start_ns, -len(each.events))):
        ids = {event.message.id for event in run.events if isinstance(event, Publish)}
        if ids and ids <= seen:
            loss.add(
                "run.again",
                "ignored",
                "a run whose messages are all of a run read already: the same log twice",
                where=run.events[0].line.where,
            )
            continue
        seen |= ids
        kept.append(run)
    return kept
