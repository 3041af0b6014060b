"""A team's component config, as ``team.dump_component()`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semtrace_adapters.autogen.shape import obj, objs, text
from semtrace_adapters.base import refuse_samples

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
    """A team: its kind (``GraphFlow``, ``Swarm`` …), name, participants, and the edges of its graph.

    ``any_joins`` are the agents of its graph that may go on after one of several edges into them.
    """

    kind: str
    name: str
    participants: list[AgentConfig]
    edges: set[tuple[str, str]] = field(default_factory=set)
    any_joins: set[str] = field(default_factory=set)
    model: str | None = None
    settings: dict[str, Any] | None = None

    def refuse_samples(self) -> None:
        """Refuse a team of which a model client asks for several answers.

        Raises:
            FormatError: naming the agent.
        """
        for name, settings in [
            (self.name, self.settings),
            *((p.name, p.settings) for p in self.participants),
        ]:
            refuse_samples((settings or {}).get("n"), f"the config's model client of {name}")

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
        and isinstance(value.get("component_type"), str)
        and value["component_type"] in {"team", "agent"}
        and isinstance(value.get("config"), dict)
    )


def read_config(value: dict[str, Any]) -> TeamConfig:
    """The team of a component config; one agent alone becomes a team of one, of kind ``Agent``."""
    if value["component_type"] == "agent":
        agent = _agent(value)
        return TeamConfig("Agent", agent.name, [agent])
    kind = value["provider"].rpartition(".")[2]
    config = value["config"]
    team = TeamConfig(
        kind, text(config.get("name")) or kind, [_agent(p) for p in objs(config.get("participants"))]
    )
    nodes = obj(obj(config.get("graph")).get("nodes"))
    for node, spec in nodes.items():
        team.edges.update((node, str(edge.get("target"))) for edge in objs(obj(spec).get("edges")))
    team.any_joins = _any_joins(nodes)
    team.model, team.settings = _client(config.get("model_client"))
    return team


def _any_joins(nodes: dict[str, Any]) -> set[str]:
    """Agents that one of several edges starts: by their own activation, an edge's condition, or several groups."""
    into: dict[str, list[tuple[str, str, str]]] = {}
    for node, spec in nodes.items():
        for edge in objs(obj(spec).get("edges")):
            target = str(edge.get("target"))
            group = text(edge.get("activation_group")) or target
            into.setdefault(target, []).append((node, group, text(edge.get("activation_condition")) or "all"))
    return {
        target
        for target, edges in into.items()
        if len({node for node, _, _ in edges}) > 1
        and (
            obj(nodes.get(target)).get("activation") == "any"
            or any(condition == "any" for _, _, condition in edges)
            or len({group for _, group, _ in edges}) > 1
        )
    }


def _agent(value: dict[str, Any]) -> AgentConfig:
    config = obj(value.get("config"))
    agent = AgentConfig(
        text(config.get("name")) or "", (text(value.get("provider")) or "").rpartition(".")[2]
    )
    agent.model, agent.settings = _client(config.get("model_client"))
    own = value if value.get("component_type") == "team" else config.get("team")
    agent.team = _team(own)
    benches = config.get("workbench")
    for bench in objs(benches if isinstance(benches, list) else [benches]):
        for tool in objs(obj(bench.get("config")).get("tools")):
            run = _team(obj(tool.get("config")).get("team"))
            if run is not None:
                agent.tool_teams[str(tool["config"].get("name"))] = run
    return agent


def _team(value: Any) -> TeamConfig | None:
    return read_config(value) if is_component(value) and value["component_type"] == "team" else None


def _client(value: Any) -> tuple[str | None, dict[str, Any] | None]:
    config = obj(value).get("config")
    if not isinstance(config, dict):
        return None, None
    if isinstance(config.get("client"), dict):  # a wrapper such as the cache
        return _client(config["client"])
    return text(config.get("model")), {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
