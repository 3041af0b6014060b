"""Running the cases: the testee is started, asked one case after the other, and started again when it fell over."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError
from semtrace_conformance.checks import judge
from semtrace_conformance.live.harness import WitnessProcess
from semtrace_conformance.live.real_server import left_out
from semtrace_conformance.messages import (
    PROTOCOL,
    BadMessageError,
    Mismatch,
    Run,
    Start,
    Started,
    Stop,
    encode,
    parse_answer,
    parse_greeting,
)
from semtrace_conformance.observe import observe, observe_execution
from semtrace_conformance.process import TroubleError
from semtrace_conformance.score import Result
from semtrace_conformance.stores import observe_store
from semtrace_conformance.suite import SPEC
from semtrace_conformance.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from semtrace_conformance.live.real_server import RealServer, ServerFacts
    from semtrace_conformance.messages import Accepted, Failed, Rejected
    from semtrace_conformance.process import Connection
    from semtrace_conformance.suite import Case, Suite

START_S: Final = 30.0
"""Seconds that a testee has to answer `start`."""
TOTAL_S: Final = 1800.0
"""Seconds for all cases together."""
RECORD: Final = "record"
"""The feature of a replayer that leaves an execution: others are not asked for one."""
LATE: Final = 3
"""Cases not answered in time, one after the other, after which no more is asked."""
DEAD: Final = 25
"""Cases not answered at all, one after the other, after which no more is asked."""


@dataclass(frozen=True)
class Limits:
    """How long things may take.

    Attributes:
        start_s: seconds to answer `start`.
        scale: what budgets of cases are multiplied with.
        total_s: seconds for all cases together; what is left is not asked then.
    """

    start_s: float = START_S
    scale: float = 1.0
    total_s: float = TOTAL_S


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        started: what the testee said of itself.
        results: the result of each case that was selected.
        restarts: how often the testee had to be started again.
        server: the real server to which replays went, if there was one.
    """

    started: Started
    results: list[Result] = field(default_factory=list)
    restarts: int = 0
    server: ServerFacts | None = None


class Runner:
    """Asks a testee the cases of a suite."""

    def __init__(
        self,
        suite: Suite,
        connect: Callable[[Path], Connection],
        *,
        limits: Limits | None = None,
        server: RealServer | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            suite: the suite.
            connect: starts the testee in a folder.
            limits: how long things may take.
            server: the real server to which replays go, through the witness; without one it answers by itself.
            progress: called with (cases done, cases in all).
        """
        self._suite = suite
        self._connect = connect
        self._limits = limits or Limits()
        self._server = server
        self._progress = progress or (lambda _done, _total: None)
        self._tables = Tables.read(suite.root / "requirements" / f"tables-{SPEC}.json")
        self._connection: Connection | None = None
        self._declared: dict[str, Collection[str]] = {}
        self._witness: WitnessProcess | None = None

    def run(self, cases: Sequence[Case], *, stop_at_first: bool = False) -> Outcome:
        """Ask the cases.

        Args:
            cases: the cases, bases before their mutations; the testee is not told which is which.
            stop_at_first: end with the first case that fails.

        Raises:
            UsageError: the testee does not speak the protocol.
        """
        with tempfile.TemporaryDirectory(prefix="semtrace-certify-") as scratch:
            try:
                return self._run(cases, Path(scratch), stop_at_first=stop_at_first)
            finally:
                self._close()
                if self._witness is not None:
                    self._witness.close()

    def _run(self, cases: Sequence[Case], scratch: Path, *, stop_at_first: bool) -> Outcome:
        facts = None if self._server is None else self._server.facts
        outcome = Outcome(self._start(scratch), server=facts)
        declared = self._declared = dict(outcome.started.profiles)
        begun = time.monotonic()
        late = dead = 0
        refusal: str | None = None
        for at, case in enumerate(cases):
            self._progress(at, len(cases))
            if not self._suite.applies(case, declared):
                outcome.results.append(Result(case, "not_applicable"))
                continue
            if self._server is not None and (reason := left_out(self._suite, case, self._server.facts)):
                outcome.results.append(Result(case, "not_applicable", left_out=reason))
                continue
            if time.monotonic() - begun > self._limits.total_s:
                refusal = refusal or f"not asked: the run has taken more than {self._limits.total_s:g} s"
            if refusal is None and self._connection is None:
                outcome.restarts += 1
                try:
                    self._start(scratch)
                except UsageError as error:
                    refusal = f"not asked: it could not be started again: {error.message}"
            if refusal is not None:
                failures = judge(case, self._suite.expected(case), None, trouble=refusal)
                result, was_late = Result(case, "failed", failures, trouble=refusal), False
            else:
                result, was_late = self._ask(case, str(at), scratch / f"case{at}")
            outcome.results.append(result)
            late = late + 1 if was_late else 0
            dead = dead + 1 if result.answer is None else 0
            if refusal is None and (late >= LATE or dead >= DEAD):
                refusal = f"not asked: no answer to {max(late, dead)} cases in a row"
            if stop_at_first and result.status == "failed":
                break
        return outcome

    def _start(self, scratch: Path) -> Started:
        connection = self._connect(scratch)
        self._connection = connection
        try:
            return self._greet(connection)
        except UsageError:
            self._kill()
            raise

    def _greet(self, connection: Connection) -> Started:
        """Send `start`, and take what comes back.

        Raises:
            UsageError: the testee does not speak the protocol, or none of the versions on offer.
        """
        offer = Start(
            type="start",
            protocols=[PROTOCOL],
            specs=[SPEC],
            profiles={name: sorted(each) for name, each in self._suite.requirements.profiles.items()},
        )
        try:
            greeting = parse_greeting(connection.ask(encode(offer), self._limits.start_s))
        except (TroubleError, BadMessageError) as error:
            said = _last_line(connection.stderr())
            raise UsageError(
                f"the testee did not answer `start` as protocol.md says: {error}"
                + (f" ({said})" if said else ""),
                code="certify.protocol",
                hint="it must answer with one line: a message of type `started`",
            ) from error
        problem = _mismatch(greeting)
        if problem or isinstance(greeting, Mismatch):
            raise UsageError(
                f"the testee and this suite do not understand each other: {problem}",
                code="certify.mismatch",
                hint=f"this suite speaks protocol {PROTOCOL} and tests spec {SPEC}",
            )
        return greeting

    def _ask(self, case: Case, number: str, folder: Path) -> tuple[Result, bool]:
        """The result of a case, and whether time ran out over it."""
        connection = self._connection
        if connection is None:
            raise AssertionError("asked without a testee")  # the caller starts it
        paths = self._suite.lay_out(case, folder / "input")
        records = case.witness is None or RECORD in self._declared.get(case.profile, ())
        output = folder / "output" if case.output is not None and records else None
        question = Run(
            type="run",
            id=number,
            profile=case.profile,
            kind=case.kind,
            inputs={name: str(path) for name, path in paths.items()},
            output=None if output is None else str(output),
            ask={
                **case.ask,
                **({} if output is None else {"form": case.output}),
                **self._serve(case, folder),
            },
        )
        answer: Accepted | Rejected | Failed | None = None
        trouble: str | None = None
        stderr: str | None = None
        late = False
        peers: list[dict[str, Any]] = []
        begun = time.monotonic()
        try:
            if case.parallel == 1:
                answer = self._answer(connection, question, case)
            else:
                answer, peers = self._together(connection, question, case, folder)
        except TroubleError as error:
            trouble, stderr, late = str(error), connection.stderr(), error.late
            self._kill()
        except BadMessageError as error:
            trouble, stderr = f"its line is not an answer: {error}", connection.stderr()
            self._kill()
        duration = round(1000 * (time.monotonic() - begun))
        observed: dict[str, Any] = {}
        if case.witness is not None and self._witness is not None:
            observed = {"witness": self._witness.end(), "record_asked": output is not None}
            if output is not None and answer is not None:
                observed |= observe_execution(output, self._tables)
        elif answer is not None:
            observed = self._observe(output, paths.get("store")) | ({"peers": peers} if peers else {})
        shutil.rmtree(folder, ignore_errors=True)
        failures = judge(case, self._suite.expected(case), answer, trouble=trouble, observed=observed)
        result = Result(
            case,
            "failed" if failures else "passed",
            failures,
            None if answer is None else answer.model_dump(exclude_none=True),
            trouble,
            observed or None,
            stderr or None,
            duration,
        )
        return result, late

    def _serve(self, case: Case, folder: Path) -> dict[str, Any]:
        """Let the witness serve a case that needs it; returns what the testee is told of it."""
        if case.witness is None:
            return {}
        if self._witness is None:
            self._witness = WitnessProcess(self._server)
        folder.mkdir(parents=True, exist_ok=True)
        return {"url": self._witness.begin(case.witness, folder / "witness.jsonl")}

    def _answer(self, connection: Connection, question: Run, case: Case) -> Accepted | Rejected | Failed:
        return parse_answer(connection.ask(encode(question), case.budget_s * self._limits.scale), question.id)

    def _together(
        self, connection: Connection, question: Run, case: Case, folder: Path
    ) -> tuple[Accepted | Rejected | Failed, list[dict[str, Any]]]:
        """Ask several testees the same at once: the answer of the first, and those of the others."""
        others = [self._connect(folder / f"peer{at}") for at in range(1, case.parallel)]
        try:
            for other in others:
                self._greet(other)
            with ThreadPoolExecutor(case.parallel) as pool:
                asked = [pool.submit(self._answer, each, question, case) for each in (connection, *others)]
                answers = [each.result() for each in asked]
        except UsageError as error:
            raise TroubleError(f"a second one could not be started: {error.message}") from error
        finally:
            for other in others:
                other.close(encode(Stop(type="stop")))
        return answers[0], [each.model_dump(exclude_none=True) for each in answers[1:]]

    def _observe(self, output: Path | None, store: Path | None) -> dict[str, Any]:
        """What the harness sees of what a testee wrote."""
        seen = {} if output is None else observe(output, self._tables)
        return seen if store is None else {**seen, "store": observe_store(store)}

    def _kill(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.kill()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(encode(Stop(type="stop")))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


def _mismatch(greeting: Started | Mismatch) -> str | None:
    """Why nothing can be asked of who answers so, None if all is well."""
    if isinstance(greeting, Mismatch):
        return greeting.message
    if greeting.protocol != PROTOCOL:
        return f"it chose protocol {greeting.protocol}, offered was {PROTOCOL}"
    if greeting.spec != SPEC:
        return f"it chose spec {greeting.spec}, offered was {SPEC}"
    return None


def order(cases: dict[str, Case], wanted: Callable[[Case], bool]) -> list[Case]:
    """The cases wanted, with the bases of those that are mutations, each base before its mutations.

    Beyond that the order says nothing of what is right or wrong: it is by digest of the id.
    """
    from blake3 import blake3

    taken: dict[str, Any] = {}

    def take(case: Case) -> None:
        if case.base is not None:
            take(cases[case.base])
        taken.setdefault(case.id, case)

    for case in sorted(cases.values(), key=lambda each: (each.profile, blake3(each.id.encode()).digest())):
        if wanted(case):
            take(case)
    return list(taken.values())
