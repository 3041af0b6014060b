"""The backend `http`: model operations are sent to a server that speaks the OpenAI protocol (spec, live.md)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.errors import DocumentError, ReplayError, UnsupportedError
from semtrace.live.asking import CHAT, COMPLETIONS, EMBEDDINGS, Asker, Form, Lock
from semtrace.live.bodies import Bodies
from semtrace.live.client import Client
from semtrace.live.clock import WallClock
from semtrace.live.connections import Pool
from semtrace.live.doctor import MESSAGES, PROMPT, examine
from semtrace.live.expected import expected_order
from semtrace.live.flights import Flights
from semtrace.live.prompts import Inputs
from semtrace.live.settings import HttpSettings, Target, Vocabulary, read_key
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind
from semtrace.records.execution import Backend as BackendFacts
from semtrace.records.trace import MemoryContent
from semtrace.replay.controller import runs_on_backend
from semtrace.replay.scenario import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from semtrace.live.examination import Examination
    from semtrace.records.trace import Content, Trace
    from semtrace.replay.backend import Report, Request, Setup

TIMEOUT_NS: Final = 600_000_000_000
"""Time limit of an attempt, if the scenario has none, in ns."""
WARM_UP: Final = 4
"""Requests before time 0, if the scenario does not say how many."""
MOST_WARM: Final = 256
"""Most connections that are opened before time 0."""
SPARE: Final = 16
"""Idle connections beyond as many as were ever in use at once that are kept."""
CONNECT_NS: Final = 10_000_000_000
"""Time limit of connecting before the run, in ns."""
WARM_UP_NS: Final = 120_000_000_000
"""Time limit of the requests before time 0, in ns."""
LEAD_NS: Final = 20_000_000
"""From the end of what is done before the run to time 0, in ns: what is released at 0 is waited for like all else."""
IDLE_NS: Final = 1_000_000
"""Work that can wait is begun when nothing is due for so long, in ns."""


class HttpBackend:
    """Sends operations to a server, each over a connection of its own, and reads the answers, all in one thread."""

    modes = frozenset({"length_locked", "token_locked"})

    def __init__(self, setup: Setup, environment: Mapping[str, str] | None = None) -> None:
        """Read the settings; nothing is sent yet.

        Args:
            setup: trace and scenario.
            environment: where the key is; the process's if left out.

        Raises:
            DocumentError: the settings are not what they must be.
            UsageError: the key cannot be sent.
        """
        self._setup = setup
        scenario = setup.scenario
        try:
            self._settings = HttpSettings.parse(dict(scenario.backend.settings), path="backend.settings")
        except DocumentError as error:
            error.requirement = error.requirement or "ST-SCN-012"
            raise
        self._key = read_key(self._settings, environment)
        self._target = Target(self._settings.url)
        self._clock = WallClock(self._poll, self._wake)
        self._retry = scenario.retry or Retry()
        self._timeout_ns = TIMEOUT_NS if scenario.timeout_ns is None else scenario.timeout_ns
        offsets = setup.trace.offsets("operations")
        self._events = int(np.diff(offsets)[setup.copies.task].sum())
        self._warmed_up = 0

    # --- before the run --------------------------------------------------------------------------------

    @cached_property
    def examination(self) -> Examination:
        """What the server was found to be.

        Raises:
            ReplayError: it cannot be connected to, speaks no HTTP, wants a key, or does not have the model.
        """
        settings, trace = self._settings, self._setup.trace
        names = ["stream", "stream_usage", "token_ids_back", "ignore_eos", "min_tokens", "length"]
        if self._setup.scenario.salt != "none":
            names.append("cache_salt")
        if self._setup.scenario.mode == "token_locked":
            names += (
                ["logits_processor", "trace_replay", "annotation"]
                if settings.lock == "auto"
                else [settings.lock]
            )
        if (runs_on_backend(trace) & (trace.operations.ints("kind") == OperationKind.EMBED)).any():
            names.append("embeddings")
        if settings.vocabulary is None and settings.inputs in ("auto", "token_ids", "synthetic"):
            names.append("vocabulary")
        made = examine(settings, self._key, only=names)
        self._insist(made)
        return made

    def _insist(self, found: Examination) -> None:
        """What must be so for anything to be sent."""
        reachable, models = found.probes["reachable"], found.probes.get("models")
        if reachable.found != "yes":
            raise ReplayError(
                f"no server is there that speaks HTTP: {reachable.evidence}",
                code="live.unreachable",
                path=self._target.url,
                hint="is it running, and listening at this address and port? semtrace doctor says what it sees",
            )
        if models is not None and models.status in (401, 403):
            there = (
                "the one given is not taken"
                if self._key is not None
                else f"{self._settings.api_key_env} is not set"
            )
            raise ReplayError(
                f"the server wants a key: {there} (status {models.status})",
                code="live.key",
                path=self._target.url,
                hint=f"put the key into the environment variable {self._settings.api_key_env}, "
                "or name another one: api_key_env",
            )
        if found.model is None:
            listed = ", ".join(found.models or []) or "none"
            raise ReplayError(
                f"which model to ask for is not known: the server lists {listed}",
                code="live.model",
                path="backend.settings.model",
                hint="name it: model: NAME",
            )
        if self._settings.model is not None and found.models and found.model not in found.models:
            raise ReplayError(
                f"the server does not list model {found.model}: it has {', '.join(found.models)}",
                code="live.model",
                path="backend.settings.model",
                hint="name one of them",
            )

    @cached_property
    def _form(self) -> Form:
        settings, found = self._settings, self.examination
        return Form(
            model=cast("str", found.model),
            stream=settings.stream and not found.cannot("stream"),
            lock=self._lock,
            ignore_eos=not found.refuses("ignore_eos"),
            min_tokens=not found.refuses("min_tokens"),
            return_token_ids=not found.refuses("token_ids_back"),
            cache_salt=found.can("cache_salt"),
            hints=settings.hints,
        )

    @cached_property
    def _lock(self) -> Lock | None:
        """How tokens are locked.

        Raises:
            UnsupportedError: the server has no way that was found.
        """
        if self._setup.scenario.mode != "token_locked":
            return None
        found, wanted = self.examination, self._settings.lock
        locks = found.locks()
        if wanted != "auto":
            if wanted in locks:
                return wanted
        elif locks:
            return cast("Lock", locks[0])
        tried = [wanted] if wanted != "auto" else ["logits_processor", "trace_replay", "annotation"]
        said = "; ".join(f"{name}: {found.probes[name].evidence}" for name in tried if name in found.probes)
        raise UnsupportedError(
            f"this server cannot be made to generate recorded tokens ({said})",
            code="live.lock",
            path=self._target.url,
            requirement="ST-LIV-021",
            hint="start vLLM with --logits-processors semtrace.live.vllm.plugin:ForcedTokens or with --enable-trace-replay --enable-scale-out, "
            "or replay with --mode length_locked",
        )

    @cached_property
    def _vocabulary(self) -> Vocabulary | None:
        """The ids of synthetic prompts: as set, else the ones that the server was found to take."""
        if self._settings.vocabulary is not None:
            return self._settings.vocabulary
        size = self.examination.vocabulary_size
        return None if size is None else Vocabulary(first=min(max(PROMPT) + 1, size - 1), size=size)

    @cached_property
    def _generates(self) -> bool:
        """Whether there is anything but embeddings."""
        kinds = self._setup.trace.operations.ints("kind")[runs_on_backend(self._setup.trace)]
        return bool((kinds == OperationKind.LLM).any()) or not len(kinds)

    @cached_property
    def _inputs(self) -> Inputs:
        found, scenario = self.examination, self._setup.scenario
        return Inputs(
            self._setup.trace,
            kind=self._settings.inputs,
            mode=scenario.mode,
            salt=scenario.salt,
            copies=scenario.copies,
            vocabulary=self._vocabulary,
            known_ids=found.vocabulary_size,
            takes_ids=not found.cannot("token_prompts" if self._generates else "embeddings"),
            synthetic_outputs=self._settings.synthetic_outputs,
        )

    def facts(self) -> BackendFacts:
        """Version and settings, and of what was left to the server what it turned out to be."""
        settings = self._settings
        found = self.__dict__.get("examination")  # not asked for if it was not yet
        if found is not None:
            chosen: dict[str, Any] = {"model": found.model, "inputs": self._inputs.kind}
            if self._inputs.kind == "synthetic":
                chosen["vocabulary"] = self._vocabulary
            if self._lock is not None:
                chosen["lock"] = self._lock
            settings = settings.model_copy(update=chosen)
        version = None if found is None else found.version
        return BackendFacts(name="http", version=version, settings=settings.as_json())

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterator[Finding]:
        """What cannot be sent to this server, or not be locked on it.

        Raises:
            ReplayError: the server is not there, or does not have the model.
            UnsupportedError: it cannot hold the mode.
        """
        del operations
        if self._setup.scenario.mode == "token_locked":
            _ = self._lock
        rows = trace.operations
        sent = runs_on_backend(trace)
        generates = sent & (rows.ints("kind") == OperationKind.LLM)
        prompt, output = rows.ints("prompt_tokens"), rows.ints("output_tokens")
        yield from found(
            "ST-LIV-024",
            generates & (output == 0),
            "operation {row} has no output tokens: servers generate at least one",
            table="operations",
            column="output_tokens",
            hint="leave it out (semtrace filter)",
        )
        longest = self.examination.max_model_len
        if longest is not None:
            total = np.maximum(prompt, 0) + np.maximum(output, 0)
            yield from found(
                "ST-LIV-025",
                sent & (total > longest),
                lambda row: (
                    f"operation {row} has {int(total[row])} tokens, prompt and output; "
                    f"the server takes {longest} of them"
                ),
                table="operations",
                column="prompt_tokens",
                hint="start the server with a larger --max-model-len, or leave long tasks out (semtrace filter)",
            )
        yield from self._unserved(sent, generates)
        yield from self._inputs.findings()

    def _unserved(
        self, sent: np.ndarray[Any, np.dtype[np.bool_]], generates: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> Iterator[Finding]:
        """Interfaces that the trace needs, and the server was found not to have."""
        examination = self.examination
        needs = "chat" if self._inputs.kind == "text" else "token_prompts"
        for name, rows in ((needs, generates), ("embeddings", sent & ~generates)):
            if rows.any() and examination.cannot(name):
                yield from found(
                    "ST-LIV-025",
                    rows,
                    f"operation {{row}} needs what the server does not do ({name}: {examination.probes[name].evidence})",
                    table="operations",
                    column="kind",
                    hint="choose other inputs, or another server; semtrace doctor shows what this one does",
                )

    def clock(self) -> WallClock:
        """The clock of the run."""
        return self._clock

    def open(self) -> None:
        """Connect, warm up, make the first requests, and set the clock's origin.

        Raises:
            ReplayError: the server is not there, or does not answer.
            UnsupportedError: it cannot hold the mode.
        """
        _ = self._flights
        pool = self._pool
        pool.establish(CONNECT_NS)
        pool.reserve = min(pool.most, max(self._requests, 1), MOST_WARM)
        self._warm_up()
        while not self._clock.stopping and (pool.tend() or self._bodies.ahead(WARM_UP_NS) or pool.turn(0)):
            pass
        pool.reserve = min(pool.reserve, SPARE)
        self._clock.begin(LEAD_NS)

    @cached_property
    def _requests(self) -> int:
        return len(self._order[0])

    @cached_property
    def _order(self) -> tuple[Any, Any]:
        return expected_order(self._setup.trace, self._setup.copies)

    @cached_property
    def _asker(self) -> Asker:
        return Asker(self._setup.trace, self._inputs, self._form, self._target, self._key)

    @cached_property
    def _bodies(self) -> Bodies:
        return Bodies(self._asker, self._order)

    @cached_property
    def _flights(self) -> Flights:
        return Flights(
            self._pool,
            self._clock,
            self._asker,
            self._bodies,
            self._events,
            self._setup.trace.operations.ints("prompt_tokens").tolist(),
            timeout_ns=self._timeout_ns,
            retry=self._retry,
        )

    def _warm_up(self) -> None:
        """Send a few short requests, so that what happens once has happened."""
        wanted = self._setup.scenario.warm_up
        count = WARM_UP if wanted is None else wanted
        client = Client(self._pool, self._target, self._key, WARM_UP_NS, lambda: self._clock.stopping)
        members: dict[str, Any]
        if not self._generates:
            path, members = (
                EMBEDDINGS,
                {"input": "one two three" if self._inputs.kind == "text" else list(PROMPT)},
            )
        elif self._inputs.kind == "text":
            path, members = CHAT, {"messages": MESSAGES, "max_tokens": 2}
        else:
            path, members = COMPLETIONS, {"prompt": list(PROMPT), "max_tokens": 2}
        body = {"model": self._form.model, **members}
        left = count
        while left > 0 and not self._clock.stopping:
            at_once = min(left, self._pool.most, 16)
            replies = client.ask_all(
                [(path, body, f"semtrace-warm-up-{count - left + each}") for each in range(at_once)]
            )
            if self._clock.stopping:
                return
            for reply in replies:
                if reply.failure is not None or reply.status != 200:
                    said = reply.detail if reply.failure is not None else f"status {reply.status}"
                    raise ReplayError(
                        f"the server does not answer a request before the run: {said}",
                        code="live.warm_up",
                        path=self._target.url,
                        hint="semtrace doctor shows what it answers; warm_up: 0 leaves this out",
                    )
            left -= at_once
            self._warmed_up += at_once

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self._target, most=self._settings.connections)

    def _wake(self) -> None:
        if "_pool" in self.__dict__:
            self._pool.wake()

    # --- the run ---------------------------------------------------------------------------------------

    def _poll(self, wait_ns: int) -> bool:
        """What the clock does while it waits: read, or else do what can wait."""
        flights, pool = self._flights, self._pool
        if flights.news:
            pool.turn(0)
        elif wait_ns <= IDLE_NS or not (pool.turn(0) or pool.tend() or self._bodies.ahead(wait_ns)):
            pool.turn(wait_ns)
        return flights.news

    def submit(self, now_ns: int, requests: Sequence[Request]) -> list[int]:
        """Send requests; when each was handed to the kernel, in ns."""
        del now_ns
        sent = self._flights.submit(requests)
        # As many as are in use may be wanted again at once.
        pool = self._pool
        pool.reserve = min(max(pool.reserve, self._flights.count // 4 + SPARE), MOST_WARM)
        return sent

    def start(self, now_ns: int) -> None:
        """Everything was sent already."""

    def next_ns(self) -> int | None:
        """When a time limit or another attempt is due, None if nothing is in flight."""
        return self._flights.next_ns()

    def reports(self, now_ns: int) -> list[Report]:
        """First tokens and ends since the last call."""
        return self._flights.reports(now_ns)

    def cancel(self, events: Sequence[int]) -> None:
        """Call requests off by closing their connections; nothing more is reported of them."""
        self._flights.cancel(events)

    def close(self) -> None:
        """Close all connections; what is in flight is called off."""
        if "_pool" in self.__dict__:
            self._pool.close()

    # --- after the run ---------------------------------------------------------------------------------

    def detail(self) -> dict[str, pa.Table]:
        """It sees no steps and no blocks."""
        return {}

    def environment(self) -> dict[str, Any]:
        """What the server is, what was found of it, and what was counted."""
        counts, flights, found = self._pool.counts, self._flights, self.examination
        return {
            "server": {
                "url": self._target.url,
                "server": found.server,
                "version": found.version,
                "max_model_len": found.max_model_len,
                "probes": {name: probe.found for name, probe in found.probes.items()},
            },
            "requests": {
                **self._inputs.facts(),
                "lock": self._lock,
                "stream": self._form.stream,
                "ignore_eos": self._form.ignore_eos,
                "min_tokens": self._form.min_tokens,
                "cache_salt": self._form.cache_salt and self._inputs.needs_cache_salt,
                "warm_up": self._warmed_up,
                "made_ahead": self._bodies.made_ahead,
                "made_late": self._bodies.made_late,
                "prompt_counts": dict(flights.prompt_counts),
                "failed_attempts": {
                    failure.name.lower(): count for failure, count in flights.failures.items()
                },
                "failures": {
                    f"{failure.name.lower()}: {detail}": count
                    for (failure, detail), count in flights.details.items()
                },
            },
            "connections": {
                "limit": self._pool.most,
                "most_open": counts.most_open,
                "opened": counts.opened,
                "opened_late": counts.opened_late,
                "not_opened": counts.not_opened,
                "waited": counts.waited,
                "resent": counts.resent,
            },
        }

    def outputs(self) -> tuple[Mapping[int, int], Content]:
        """Of events whose output ids came, their ordinal in the content by digest (ST-EXE-010), and the content."""
        contents = self._flights.contents
        place = {digest: at for at, digest in enumerate(sorted(contents))}
        ordinal = np.array([place[digest] for digest in contents], dtype=np.int64)
        kept = np.frombuffer(self._flights.output, dtype=np.int64)
        events = np.flatnonzero(kept != NULL)
        return dict(zip(events.tolist(), ordinal[kept[events]].tolist(), strict=True)), MemoryContent(
            contents
        )

    def request_ids(self) -> dict[int, str]:
        """Of events that were sent, the id of the last attempt."""
        trace, copies = self._setup.trace, self._setup.copies
        starts = trace.offsets("operations")
        sizes = np.diff(starts)[copies.task]
        first = np.cumsum(sizes) - sizes
        instance = np.repeat(np.arange(len(sizes)), sizes)
        operation = np.arange(len(instance)) + np.repeat(starts[copies.task] - first, sizes)
        return self._flights.request_ids(instance.tolist(), operation.tolist())
