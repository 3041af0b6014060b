"""What the lines of a log say: the events of a run.

A line is recognised by the module and function that logged it and the form of its message; line numbers differ
between releases and do not count. Lines that say nothing of the work are left out.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .lines import Line, without_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semtrace_adapters.base import LossReport


@dataclass(frozen=True)
class Event:
    """Something that a line says; `at` is its place among the run's lines."""

    at: int
    line: Line


@dataclass(frozen=True)
class Invest(Event):
    """A team got its budget: a run begins."""

    dollars: str


@dataclass(frozen=True)
class Message:
    """A message between roles."""

    id: str
    content: str
    role: str
    cause_by: str
    sent_from: str
    send_to: tuple[str, ...]
    structured: bool
    raw: str

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Message:
        """A message of its JSON; raises KeyError or TypeError where it is not one."""
        send_to = value.get("send_to") or ()
        if not isinstance(value["id"], str) or not isinstance(value["content"], str):
            raise TypeError("a message's id and content are strings")
        return cls(
            id=value["id"],
            content=without_surrogates(value["content"]),
            role=without_surrogates(str(value.get("role", ""))),
            cause_by=without_surrogates(str(value.get("cause_by", ""))),
            sent_from=without_surrogates(str(value.get("sent_from", ""))),
            send_to=tuple(sorted(without_surrogates(str(address)) for address in send_to)),
            structured=value.get("instruct_content") is not None,
            raw=without_surrogates(json.dumps(value, ensure_ascii=False, sort_keys=True)),
        )

    @property
    def action(self) -> str:
        """The action that caused it, without its module."""
        return self.cause_by.rpartition(".")[2]

    @property
    def from_user(self) -> bool:
        """Whether it is a user's requirement."""
        return self.action == "UserRequirement" and not self.sent_from


@dataclass(frozen=True)
class Publish(Event):
    """A message went to all roles that it is addressed to."""

    message: Message


@dataclass(frozen=True)
class NoRecipients(Event):
    """The message published just before had nobody to go to."""


@dataclass(frozen=True)
class Observed(Event):
    """A role took its new messages into its memory; `news` are those it acts upon, as `role: first 20 signs`."""

    role: str
    news: tuple[str, ...]


@dataclass(frozen=True)
class Act(Event):
    """A role begins an action; `announced` where MetaGPT says so a second time for the same action."""

    role: str
    action: str
    announced: bool


@dataclass(frozen=True)
class SetState(Event):
    """A role chose an action, or -1: it is done. The line does not say which role."""

    state: int


@dataclass(frozen=True)
class Ask(Event):
    """A request goes to the model."""

    messages: list[dict[str, Any]] | None


@dataclass(frozen=True)
class Usage(Event):
    """A call of the model ended; counts are None where they were lost."""

    prompt_tokens: int | None
    output_tokens: int | None
    model: str | None


@dataclass(frozen=True)
class RawOutput(Event):
    """The text that a model returned, logged at once after its call."""

    text: str


@dataclass(frozen=True)
class Parsed(Event):
    """The parsed form of the output just before."""


@dataclass(frozen=True)
class Purpose(Event):
    """What a role's next call is for: an action within the action, and the file it is about."""

    action: str
    file: str


@dataclass(frozen=True)
class Saved(Event):
    """A file was written."""

    path: str


@dataclass(frozen=True)
class Depends(Event):
    """A file was recorded to depend on others."""

    path: str
    on: tuple[str, ...]


@dataclass(frozen=True)
class Renamed(Event):
    """The workspace was moved."""

    old: str
    new: str


@dataclass(frozen=True)
class RoundEnd(Event):
    """All roles have had their turn."""


@dataclass(frozen=True)
class RunEnd(Event):
    """The run is over: every role is idle, or the last round was played."""

    idle: bool


@dataclass(frozen=True)
class Retry(Event):
    """A call of the model failed and is made again."""


@dataclass(frozen=True)
class Failed(Event):
    """A role raised an exception, or the whole run ended with one."""

    whole_run: bool


_ROLE: Final = r"(?P<role>[^\n]*?\([^\n]*\))"
_OBSERVED: Final = re.compile(rf"{_ROLE} observed: (?P<news>\[.*\])", re.DOTALL)
_NO_NEWS: Final = re.compile(rf"{_ROLE}: no news\. waiting\.")
_WILL_DO: Final = re.compile(rf"{_ROLE}: self\.rc\.state=-?\d+, will do (?P<action>\S.*)", re.DOTALL)
_TO_DO: Final = re.compile(rf"{_ROLE}: to do (?P<action>[^\n(]+)\(")
_STATE: Final = re.compile(r"actions=\[.*\], state=(?P<state>-?\d+)", re.DOTALL)
_TOKENS: Final = re.compile(
    r"prompt_tokens: (?P<prompt>\d{1,15}), completion_tokens: (?P<output>\d{1,15})\s*$"
)
_NO_PRICE: Final = re.compile(r"Model (?P<model>\S+) not found in TOKEN_COSTS")
_SAVED: Final = re.compile(r"save to: (?P<path>\S.*)")
_DEPENDS: Final = re.compile(r"update dependency: (?P<path>\S.*?):(?P<on>[\[{(].*[\]})]|set\(\))")
_RENAMED: Final = re.compile(r"Rename directory (?P<old>.+) to (?P<new>.+)")
_WRITING: Final = re.compile(r"Writing (?P<file>.+)\.\.")
_REVIEW: Final = re.compile(r"Code review and rewrite (?P<file>.+?): \d+/\d+")
_INVEST: Final = re.compile(r"Investment: \$(?P<dollars>[\d.]+)\.")
_ROUNDS_LEFT: Final = re.compile(r"max n_round=(?P<left>-?\d+) left\.")


def events_of(lines: Sequence[Line], loss: LossReport) -> list[Event]:
    """The events in the lines of one log, in order."""
    found: list[Event] = []
    for at, line in enumerate(lines):
        read = _READERS.get((line.module, line.function)) or _BY_FUNCTION.get(line.function)
        event = read(at, line, loss) if read else None
        if event is not None:
            found.append(event)
    return found


def _invest(at: int, line: Line, _: LossReport) -> Event | None:
    found = _INVEST.match(line.message)
    return Invest(at, line, found["dollars"]) if found else None


def _publish(at: int, line: Line, loss: LossReport) -> Event | None:
    if line.message.startswith("Message no recipients: "):
        return NoRecipients(at, line)
    if not line.message.startswith("publish_message: "):
        return None
    try:
        return Publish(at, line, Message.parse(json.loads(line.message.removeprefix("publish_message: "))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        loss.add("message.unreadable", "lost", "a published message that cannot be parsed", where=line.where)
        return None


def _observe(at: int, line: Line, loss: LossReport) -> Event | None:
    found = _OBSERVED.fullmatch(line.message)
    if not found:
        return None
    try:
        news = ast.literal_eval(found["news"])
        return Observed(at, line, found["role"], tuple(str(each) for each in news))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        loss.add("observed.unreadable", "lost", "what a role observed cannot be parsed", where=line.where)
        return Observed(at, line, found["role"], ("",))


def _role(at: int, line: Line, _: LossReport) -> Event | None:
    if found := _NO_NEWS.fullmatch(line.message):
        return Observed(at, line, found["role"], ())
    if found := _WILL_DO.fullmatch(line.message):
        return Act(at, line, found["role"], found["action"], announced=False)
    if found := _TO_DO.match(line.message):
        return Act(at, line, found["role"], found["action"], announced=True)
    return None


def _state(at: int, line: Line, _: LossReport) -> Event | None:
    found = _STATE.fullmatch(line.message)
    return SetState(at, line, int(found["state"])) if found else None


def _ask(at: int, line: Line, loss: LossReport) -> Event | None:
    if not line.message.startswith("["):
        return None
    try:
        value = ast.literal_eval(line.message)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        value = None
    if not isinstance(value, list) or not all(isinstance(m, dict) and "role" in m for m in value):
        loss.add("request.unreadable", "lost", "a request whose messages cannot be parsed", where=line.where)
        return Ask(at, line, None)
    messages = _clean(value)
    if messages != value:
        loss.add("text.surrogate", "repaired", "lone surrogates were replaced", where=line.where)
    return Ask(at, line, messages)


def _clean(value: Any) -> Any:
    """The value with lone surrogates replaced in every string."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    return value


def _usage(at: int, line: Line, _: LossReport) -> Event | None:
    if found := _TOKENS.search(line.message):
        return Usage(at, line, int(found["prompt"]), int(found["output"]), None)
    if found := _NO_PRICE.match(line.message):
        return Usage(at, line, None, None, found["model"])
    return None


def _usage_lost(at: int, line: Line, _: LossReport) -> Event | None:
    return Usage(at, line, None, None, None) if line.message.startswith("usage calculation failed") else None


def _raw_output(at: int, line: Line, _: LossReport) -> Event | None:
    if line.message.startswith("llm raw output:\n"):
        return RawOutput(at, line, line.message.removeprefix("llm raw output:\n"))
    return Parsed(at, line) if line.message.startswith("parsed_data:") else None


def _save(at: int, line: Line, loss: LossReport) -> Event | None:
    if found := _DEPENDS.fullmatch(line.message):
        try:
            on = () if found["on"] == "set()" else tuple(sorted(map(str, ast.literal_eval(found["on"]))))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            loss.add(
                "dependency.unreadable", "lost", "a file's dependencies cannot be parsed", where=line.where
            )
            return None
        return Depends(at, line, found["path"], on)
    found = _SAVED.fullmatch(line.message)
    return Saved(at, line, found["path"]) if found else None


def _rename(at: int, line: Line, _: LossReport) -> Event | None:
    found = _RENAMED.fullmatch(line.message)
    return Renamed(at, line, found["old"], found["new"]) if found else None


def _writing(at: int, line: Line, _: LossReport) -> Event | None:
    found = _WRITING.fullmatch(line.message)
    return Purpose(at, line, "WriteCode", found["file"]) if found else None


def _review(at: int, line: Line, _: LossReport) -> Event | None:
    found = _REVIEW.match(line.message)
    return Purpose(at, line, "WriteCodeReview", found["file"]) if found else None


def _round_end(at: int, line: Line, _: LossReport) -> Event | None:
    return RoundEnd(at, line) if line.message.startswith("is idle: ") else None


def _team(at: int, line: Line, _: LossReport) -> Event | None:
    if line.message.startswith("All roles are idle"):
        return RunEnd(at, line, idle=True)
    found = _ROUNDS_LEFT.fullmatch(line.message)
    return RunEnd(at, line, idle=False) if found and int(found["left"]) <= 0 else None


def _wrapper(at: int, line: Line, _: LossReport) -> Event | None:
    if line.message.startswith("Exception occurs, start to serialize the project") or line.message.startswith(
        "KeyboardInterrupt occurs, start to serialize the project"
    ):
        return Failed(at, line, whole_run=True)
    if line.message.startswith("There is a exception in role's execution"):
        return Failed(at, line, whole_run=False)
    return None


def _retry(at: int, line: Line, _: LossReport) -> Event | None:
    again = "acompletion_text" in line.message and line.message.startswith("Finished call to ")
    return Retry(at, line) if again else None


_READERS: Final[dict[tuple[str, str], Callable[[int, Line, LossReport], Event | None]]] = {
    ("metagpt.team", "invest"): _invest,
    ("metagpt.team", "run"): _team,
    ("metagpt.environment.base_env", "run"): _round_end,
    ("metagpt.environment.base_env", "publish_message"): _publish,
    ("metagpt.provider.base_llm", "aask"): _ask,
    ("metagpt.utils.cost_manager", "update_cost"): _usage,
    ("metagpt.actions.action_node", "_aask_v1"): _raw_output,
    ("metagpt.utils.file_repository", "save"): _save,
    ("metagpt.utils.git_repository", "rename_root"): _rename,
    ("metagpt.actions.write_code", "run"): _writing,
    ("metagpt.actions.write_code_review", "run"): _review,
    ("metagpt.utils.common", "wrapper"): _wrapper,
    ("tenacity.after", "log_it"): _retry,
}
# A role's own class may override these, and then its module logs; other environments and providers likewise.
_BY_FUNCTION: Final[dict[str, Callable[[int, Line, LossReport], Event | None]]] = {
    "_observe": _observe,
    "run": _role,
    "_react": _role,
    "_act": _role,
    "_set_state": _state,
    "_calc_usage": _usage_lost,
    "publish_message": _publish,
}
