"""The AutoGen adapter: detection and reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.errors import FormatError, SemtraceError
from semtrace_adapters.autogen.convert import convert
from semtrace_adapters.autogen.sources import Reader, files_of, kind_of, nothing_read
from semtrace_adapters.base import ImportOptions, ImportResult, LossReport, is_wide

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class AutoGenAdapter:
    """Reads what AutoGen 0.4 to 0.7 leaves: event log, spans, run stream and component config, any of them."""

    name = "autogen"
    version = "1"
    summary = "AutoGen 0.4-0.7: event log, OpenTelemetry spans (native, OpenInference), run stream, component config"

    def detect(self, paths: Sequence[Path]) -> int:
        """How sure it is that the files are AutoGen's, in percent: the surest file counts."""
        sure = 0
        for path in files_of(paths)[:_LOOKED_AT]:
            try:
                sure = max(sure, kind_of(path)[1])
            except (SemtraceError, OSError, ValueError):
                continue
        return sure

    def read(self, paths: Sequence[Path], options: ImportOptions) -> ImportResult:
        """Read and merge the sources; see `semtrace_adapters.base.Adapter`."""
        options.refuse_unknown(self.name, ())
        loss = LossReport()
        files = files_of(paths)
        kinds = {path: kind_of(path)[0] for path in files}
        used = {path: kind for path, kind in kinds.items() if kind not in {"other", "state"}}
        if not set(used.values()) - {"config"}:
            raise nothing_read(paths, kinds.values())
        reader = Reader(loss, options.progress, sum(path.stat().st_size for path in used))
        for path, kind in used.items():
            reader.read(path, kind)
        for path, kind in kinds.items():
            if kind == "state":
                loss.add(
                    "state.snapshot",
                    "ignored",
                    "a saved state is the last snapshot, and says nothing of the run",
                    where=path.name,
                )
            elif kind == "other" and is_wide(path):
                loss.add(
                    "files.encoding", "lost", "a file that is UTF-16 or UTF-32, not UTF-8", where=path.name
                )
            elif kind == "other":
                loss.add("files.other", "ignored", "a file that is none of AutoGen's", where=path.name)
        sources = reader.finish()
        built = convert(sources, loss)
        if built.trace.operations.rows == 0:
            cut = next((each.message for each in loss.items() if each.code == "run.cut"), "")
            raise FormatError(
                "AutoGen's sources, but no call of a model that ended" + (f": {cut}" if cut else ""),
                code="autogen.no_calls",
                path=", ".join(str(path) for path in paths),
                hint="log autogen_core.events at level INFO, for the whole run",
            )
        return ImportResult(built.trace, built.execution, loss.items(), sources.files)


_LOOKED_AT = 64
"""Files that detection looks at, at most."""
