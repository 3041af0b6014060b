"""A team's component config, as ``team.dump_component()`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_NOT_SETTINGS = frozenset(
    {
        "model",
        "api_key",
        "base_url",
        "organization",
        "model_info",
        "model_capabilities",
        "timeout",
        "max_retries",
        "default_headers",
        "azure_endpoint",
        "azure_deployment",
        "api_version",
        "azure_ad_token",
        "azure_ad_token_provider",
    }
)
"""Members of a client's config that are no generation settings."""


@dataclass
class AgentConfig:
    """One participant: its name, its model and generation settings, and the team inside of it, if any."""

    name: str
    provider: str
    model: str | None = None
    settings: dict[str, Any] | None = None
    team: TeamConfig | None = None
    tool_teams: dict[str, TeamConfig] = field(default_factory=dict)


@dataclass
class TeamConfig:
    """A team: its kind (``GraphFlow``, ``Swarm`` …), name, participants, and the edges of its graph."""

    kind: str
    name: str
    participants: list[AgentConfig]
    edges: set[tuple[str, str]] = field(default_factory=set)
    model: str | None = None
    settings: dict[str, Any] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the participants."""
        return [p.name for p in self.participants]

    def all_teams(self) -> list[TeamConfig]:
        """This team and all teams inside of it."""
        made = [self]
        for participant in self.participants:
            for team in [participant.team, *participant.tool_teams.values()]:
                if team is not None:
                    made.extend(team.all_teams())
        return made


def is_component(value: Any) -> bool:
    """Whether a JSON value is the config of a team or an agent."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("provider"), str)
        and value.get("component_type") in {"team", "agent"}
        and isinstance(value.get("config"), dict)
    )


def read_config(value: dict[str, Any]) -> TeamConfig:
    """The team of a component config; one agent alone becomes a team of one, of kind ``Agent``."""
    if value["component_type"] == "agent":
        agent = _agent(value)
        return TeamConfig("Agent", agent.name, [agent])
    kind = value["provider"].rpartition(".")[2]
    config = value["config"]
    participants = [_agent(p) for p in config.get("participants") or [] if isinstance(p, dict)]
    team = TeamConfig(kind, str(config.get("name") or kind), participants)
    graph = config.get("graph")
    for node, spec in (graph.get("nodes") or {}).items() if isinstance(graph, dict) else ():
        team.edges.update((node, str(edge.get("target"))) for edge in spec.get("edges") or [])
    team.model, team.settings = _client(config.get("model_client"))
    return team


def _agent(value: dict[str, Any]) -> AgentConfig:
    config = value.get("config") or {}
    provider = str(value.get("provider", "")).rpartition(".")[2]
    agent = AgentConfig(str(config.get("name") or ""), provider)
    agent.model, agent.settings = _client(config.get("model_client"))
    if value.get("component_type") == "team":
        agent.team = read_config(value)
    elif is_component(config.get("team")) and config["team"]["component_type"] == "team":
        agent.team = read_config(config["team"])
    for bench in config.get("workbench") or []:
        for tool in (bench.get("config") or {}).get("tools") or [] if isinstance(bench, dict) else []:
            inner: Any = (tool.get("config") or {}).get("team") if isinstance(tool, dict) else None
            if is_component(inner) and inner["component_type"] == "team":
                agent.tool_teams[str(tool["config"].get("name"))] = read_config(inner)
    return agent


def _client(value: Any) -> tuple[str | None, dict[str, Any] | None]:
    config = value.get("config") if isinstance(value, dict) else None
    if not isinstance(config, dict):
        return None, None
    if isinstance(config.get("client"), dict):  # a wrapper such as the cache
        return _client(config["client"])
    settings = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
    return (str(config["model"]) if config.get("model") else None), settings
