"""The adapter: which files are step logs of vLLM, and reading those of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from semtrace.errors import FormatError, UsageError
from semtrace.live.vllm.log_lines import BYTE_ORDER_MARK
from semtrace.live.vllm.names import FORMAT
from semtrace.live.vllm.steps import read_steps
from semtrace_adapters.base import ImportOptions, ImportResult, LossReport, files_in
from semtrace_adapters.vllm.step_log import read_content
from semtrace_adapters.vllm.to_trace import TASKS, Conversion, Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LEAST: Final = 8
"""Tokens that an output must have to be looked for in later prompts, unless told otherwise."""
_LOOKED_AT: Final = 1 << 16
_FILES: Final = 64


class VllmAdapter:
    """Reads what a recording scheduler of vLLM wrote down."""

    name = "vllm"
    version = "1"
    summary = (
        "vLLM: step logs of a recording scheduler, with token ids where they were recorded (docs/vllm.md)"
    )

    def detect(self, paths: Sequence[Path]) -> int:
        """How sure it is that files are step logs, in percent."""
        return 100 if any(_is_log(path) for path in files_in(paths)[:_FILES]) else 0

    def options(self, values: Mapping[str, str]) -> tuple[Tasks, int]:
        """What makes requests one task, and the tokens of an output that is looked for, of the options of a user.

        Raises:
            UsageError: there is no such option, or it has no such value.
        """
        known = (f"tasks={'|'.join(TASKS)}", "least=TOKENS")
        ImportOptions(values=values).refuse_unknown(self.name, known)
        tasks = next((each for each in TASKS if each == values.get("tasks", "hints")), None)
        if tasks is None:
            raise UsageError(
                f"no option tasks={values['tasks'][:40]}",
                code="adapter.option",
                hint=f"the options of {self.name} are: {', '.join(known)}",
            )
        return tasks, _least(values.get("least"))

    def read(self, paths: Sequence[Path], options: ImportOptions) -> ImportResult:
        """Read the logs of one run: one file for each engine.

        Options: `tasks`, what makes requests one task: what clients said of them (`hints`), that one repeats another (`matched`), that they were
        recorded together (`one`), or nothing (`requests`); `least`, tokens that an output must have to be looked for in later prompts.

        Raises:
            FormatError: no file is a step log, or no request in it has ended.
            UsageError: a file cannot be read, or there is no such option.
        """
        tasks, least = self.options(options.values)
        loss = LossReport()
        files = files_in(paths)
        logs = [path for path in files if _is_log(path)]
        for path in files:
            if path not in logs:
                loss.add("files.other", "ignored", "a file that is no step log", where=path.name)
        if not logs:
            raise FormatError(
                "there is no step log of vLLM",
                code="vllm.nothing",
                path=", ".join(map(str, paths)),
                hint="a step log is what vLLM writes with a recording scheduler (docs/vllm.md)",
            )
        steps = read_steps(logs)
        content = read_content(logs, loss, options.progress)
        conversion = Conversion(steps, content, tasks, least, loss)
        if not conversion.calls:
            raise FormatError(
                f"no request has ended in it ({len(content.calls)} had begun)",
                code="vllm.empty",
                path=str(logs[0]),
                hint="send requests to the server while it records",
            )
        trace, execution = conversion.run()
        return ImportResult(trace, execution, loss.items(), logs)


def _least(text: str | None) -> int:
    if text is None:
        return LEAST
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) > 1):
        raise UsageError(f"least={text[:40]}: must be a number of tokens from 2", code="adapter.option")
    return int(text)


def _is_log(path: Path) -> bool:
    """Whether the first line of a file is a server's."""
    try:
        with path.open("rb") as file:
            value = orjson.loads(file.readline(_LOOKED_AT).removeprefix(BYTE_ORDER_MARK))
    except (OSError, orjson.JSONDecodeError):
        return False
    return isinstance(value, dict) and value.get("kind") == "server" and value.get("format") == FORMAT
