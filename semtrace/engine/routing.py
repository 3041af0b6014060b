"""How a released operation finds its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from semtrace.engine.scheduler import Request
    from semtrace.engine.settings import Routing
    from semtrace.engine.step import Server


class Router:
    """Sends requests to servers, one after the other in the order of their release.

    Args:
        rule: `round_robin`: the next server; `least_loaded`: where the fewest requests wait or run; `prefix_aware`: where
            the most leading blocks of the request are, of equals the least loaded; `session_sticky`: where the session
            was sent first, its first request to the next server. Of equals, the lowest server.
        servers: the servers.
    """

    def __init__(self, rule: Routing, servers: Sequence[Server]) -> None:
        self._rule = rule
        self._servers = servers
        self._next = 0
        self._places: dict[Hashable, int] = {}

    def choose(self, session: Hashable, request: Request) -> Server:
        """The server of a request of this session."""
        if self._rule == "least_loaded":
            return min(self._servers, key=lambda server: (server.load, server.index))
        if self._rule == "prefix_aware":
            return min(
                self._servers,
                key=lambda server: (-len(server.scheduler.find(request)), server.load, server.index),
            )
        if self._rule == "session_sticky" and session in self._places:
            return self._servers[self._places[session]]
        chosen = self._next
        self._next = (chosen + 1) % len(self._servers)
        self._places[session] = chosen
        return self._servers[chosen]
