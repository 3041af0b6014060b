"""The backend `http`: model operations are sent to a server that speaks the OpenAI protocol (spec, live.md)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.errors import DocumentError, ReplayError
from semtrace.live.asking import CHAT, COMPLETIONS, EMBEDDINGS, Asker
from semtrace.live.bodies import Bodies
from semtrace.live.choices import Choices
from semtrace.live.client import Client
from semtrace.live.clock import WallClock, sleep_ns
from semtrace.live.connections import Pool
from semtrace.live.doctor import MESSAGES, PROMPT
from semtrace.live.expected import expected_order
from semtrace.live.flights import Flights
from semtrace.live.settings import HttpSettings, Target, read_key
from semtrace.records.columns import NULL
from semtrace.records.execution import Backend as BackendFacts
from semtrace.records.trace import MemoryContent
from semtrace.replay.scenario import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from semtrace.check.finding import Finding
    from semtrace.records.trace import Content, Trace
    from semtrace.replay.backend import Report, Request, Setup

TIMEOUT_NS: Final = 600_000_000_000
"""Time limit of an attempt, if the scenario has none, in ns."""
WARM_UP: Final = 4
"""Requests before time 0, if the scenario does not say how many."""
MOST_WARM: Final = 256
"""Most connections that are opened before time 0."""
SPARE: Final = 16
"""Idle connections that are kept open during the run, and a quarter of those in use."""
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
        self._choices = Choices(setup.trace, scenario, self._settings, self._key)
        self._target = Target(self._settings.url)
        self._clock = WallClock(self._poll, self._wake)
        self._retry = scenario.retry or Retry()
        self._timeout_ns = TIMEOUT_NS if scenario.timeout_ns is None else scenario.timeout_ns
        offsets = setup.trace.offsets("operations")
        self._events = int(np.diff(offsets)[setup.copies.task].sum())
        self._warmed_up = 0

    # --- before the run --------------------------------------------------------------------------------

    def facts(self) -> BackendFacts:
        """Version and settings, and of what was left to the server what it turned out to be."""
        if not self._choices.asked:
            return BackendFacts(name="http", settings=self._settings.as_json())
        version = self._choices.examination.version
        return BackendFacts(name="http", version=version, settings=self._choices.settled().as_json())

    def refuse(self, trace: Trace, operations: Iterable[int]) -> Iterator[Finding]:
        """What cannot be sent to this server, or not be locked on it.

        Raises:
            ReplayError: the server is not there, or does not have the model.
            UnsupportedError: it cannot hold the mode.
        """
        del trace, operations
        return self._choices.findings()

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
        pool.begin_counting()
        self._clock.begin(LEAD_NS)

    @cached_property
    def _requests(self) -> int:
        return len(self._order[0])

    @cached_property
    def _order(self) -> tuple[Any, Any]:
        return expected_order(self._setup.trace, self._setup.copies)

    @cached_property
    def _asker(self) -> Asker:
        return Asker(self._setup.trace, self._choices.inputs, self._choices.form, self._target, self._key)

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
            timeout_ns=self._timeout_ns,
            retry=self._retry,
        )

    def _warm_up(self) -> None:
        """Send a few short requests, so that what happens once has happened."""
        wanted = self._setup.scenario.warm_up
        count = WARM_UP if wanted is None else wanted
        client = Client(self._pool, self._target, self._key, WARM_UP_NS, lambda: self._clock.stopping)
        members: dict[str, Any]
        if not self._choices.generates:
            path, members = (
                EMBEDDINGS,
                {"input": "one two three" if self._choices.inputs.kind == "text" else list(PROMPT)},
            )
        elif self._choices.inputs.kind == "text":
            path, members = CHAT, {"messages": MESSAGES, "max_tokens": 2}
        else:
            path, members = COMPLETIONS, {"prompt": list(PROMPT), "max_tokens": 2}
        body = {"model": self._choices.form.model, **members}
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
            pool.turn(sleep_ns(wait_ns))
        return flights.news

    def submit(self, now_ns: int, requests: Sequence[Request]) -> list[int | None]:
        """Send requests; when each was handed to the kernel, in ns, None if it waits for a connection."""
        del now_ns
        sent = self._flights.submit(requests)
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
        if "_flights" in self.__dict__:
            self._flights.close()
        if "_pool" in self.__dict__:
            self._pool.close()

    # --- after the run ---------------------------------------------------------------------------------

    def detail(self) -> dict[str, pa.Table]:
        """It sees no steps and no blocks."""
        return {}

    def environment(self) -> dict[str, Any]:
        """What the server is, what was found of it, and what was counted."""
        counts, flights, found = self._pool.counts, self._flights, self._choices.examination
        return {
            "server": {
                "url": self._target.url,
                "server": found.server,
                "version": found.version,
                "max_model_len": found.max_model_len,
                "probes": {name: probe.found for name, probe in found.probes.items()},
            },
            "requests": {
                **self._choices.inputs.facts(),
                "lock": self._choices.lock,
                "stream": self._choices.form.stream,
                "ignore_eos": self._choices.form.ignore_eos,
                "min_tokens": self._choices.form.min_tokens,
                "cache_salt": self._choices.form.cache_salt and self._choices.inputs.needs_cache_salt,
                "warm_up": self._warmed_up,
                "made_ahead": self._bodies.made_ahead,
                "made_late": self._bodies.made_late,
                "failed_attempts": {
                    failure.name.lower(): count for failure, count in flights.failures.items()
                },
                "failures": {
                    f"{failure.name.lower()}: {self._hide(detail)}": count
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

    def _hide(self, words: str) -> str:
        """Words that may be a server's without the key, should it repeat it as a type or a code."""
        return words if self._key is None else self._key.hide(words)

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
