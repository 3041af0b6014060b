"""The teams that record.py runs: each function returns a team and its task.

Replies come from the test server, which follows the cues in the system messages: ``<<tokens=N>>`` is the length
of a reply, ``<<call=…>>`` plans rounds of tool calls, ``<<say=…>>`` ends the text (see tests/servers/openai_server.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import (
    BaseGroupChat,
    DiGraphBuilder,
    GraphFlow,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

if TYPE_CHECKING:
    from collections.abc import Callable

    Scenario = Callable[["Endpoint"], tuple[BaseGroupChat, str]]


class Endpoint:
    """Makes the model clients and the agents of one scenario, all against one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self, **settings: Any) -> OpenAIChatCompletionClient:
        """A client for the server's model."""
        info = {"vision": False, "function_calling": True, "json_output": True, "family": "gpt-4o"}
        return OpenAIChatCompletionClient(
            model="gpt-4o-2024-08-06",
            base_url=self.url,
            api_key="not-needed",
            temperature=0.0,
            seed=7,
            max_tokens=512,
            model_info={**info, "structured_output": True, "multiple_system_messages": True},  # type: ignore[typeddict-item]
            **settings,
        )

    def agent(self, name: str, text: str, **options: Any) -> AssistantAgent:
        """An assistant with a system message that names it."""
        client = options.pop("client", None) or self.client()
        message = f"You are {name}. {text}"
        options.setdefault("description", text.partition(". ")[0])
        return AssistantAgent(name, model_client=client, system_message=message, **options)


async def search_news(topic: str) -> str:
    """Search recent news on a topic."""
    await asyncio.sleep(0.12)
    return f"3 articles on {topic}: demand up 4 percent, two new entrants, one recall."


async def read_filings(company: str) -> str:
    """Read the annual filings of a company."""
    await asyncio.sleep(0.3)
    return f"Filings of {company}: revenue 81 M, margin 12 percent, cash for 19 months."


async def query_prices(symbol: str) -> str:
    """Query the price history of a symbol."""
    await asyncio.sleep(0.05)
    return f"{symbol}: 104, 109, 101, 98, 112."


async def fit_trend(series: str) -> str:
    """Fit a trend to a price series."""
    await asyncio.sleep(0.18)
    return f"Trend of {series}: plus 1.6 a week, standard error 0.9."


async def check_sanctions(name: str) -> str:
    """Check a name against sanction lists."""
    await asyncio.sleep(0.09)
    return f"{name}: no match on 5 lists."


async def broken_feed(feed: str) -> str:
    """Read a feed that is down."""
    await asyncio.sleep(0.02)
    raise ConnectionError(f"feed {feed} is down")


def graphflow(at: Endpoint) -> tuple[BaseGroupChat, str]:
    """A planner, three analysts side by side with tools of different speed, a join, a reviewer."""
    rules = "State figures with their source. Keep to the brief. Do not repeat what others reported."
    planner = at.agent("planner", f"Split the request into three independent briefs. {rules} <<tokens=20>>")
    market = at.agent(
        "market_analyst",
        f"Judge demand and competition from news and filings. {rules} <<tokens=90>>",
        tools=[search_news, read_filings],
        reflect_on_tool_use=True,
    )
    quant = at.agent(
        "quant_analyst",
        f"Get prices first, then fit the trend. {rules} <<tokens=45>> <<call=query_prices>> <<call=fit_trend>>",
        tools=[query_prices, fit_trend],
        max_tool_iterations=2,
        reflect_on_tool_use=True,
    )
    risk = at.agent(
        "risk_analyst",
        f"Look for reasons not to invest. {rules} <<tokens=30>>",
        tools=[check_sanctions],
        reflect_on_tool_use=True,
    )
    editor = at.agent("editor", f"Join the three reports into one recommendation. {rules} <<tokens=110>>")
    reviewer = at.agent(
        "reviewer", "Check the recommendation against the reports. <<tokens=40>> <<say=APPROVED>>"
    )
    graph = DiGraphBuilder()
    for node in (planner, market, quant, risk, editor, reviewer):
        graph.add_node(node)
    for analyst in (market, quant, risk):
        graph.add_edge(planner, analyst).add_edge(analyst, editor)
    graph.add_edge(editor, reviewer)
    team = GraphFlow([planner, market, quant, risk, editor, reviewer], graph=graph.build())
    return team, "Should the fund buy shares of Halvorsen Marine? Give one recommendation with its reasons."


def graphloop(at: Endpoint) -> tuple[BaseGroupChat, str]:
    """A writer and a critic in a loop of a graph, left when the critic approves."""
    writer = at.agent("writer", "Write the paragraph, or revise it. <<tokens=20>>")
    critic = at.agent("critic", "Ask for a revision once, then approve. <<tokens=20>>")
    publisher = at.agent("publisher", "Publish what was approved. <<tokens=20>>")
    graph = DiGraphBuilder()
    graph.add_node(writer).add_node(critic).add_node(publisher)
    graph.add_edge(writer, critic)
    graph.add_edge(critic, writer, condition="REVISE").add_edge(critic, publisher, condition="APPROVE")
    graph.set_entry_point(writer)
    team = GraphFlow(
        [writer, critic, publisher], graph=graph.build(), termination_condition=MaxMessageTermination(12)
    )
    return team, "Write a paragraph on tides."


def swarm(at: Endpoint) -> tuple[BaseGroupChat, str]:
    """Handoffs: triage to refunds, refunds back to triage, triage to billing, which ends it."""
    triage = at.agent(
        "triage",
        "Send the customer to the right desk. <<call=transfer_to_refunds>> <<call=transfer_to_billing>>",
        handoffs=["refunds", "billing"],
    )
    refunds = at.agent(
        "refunds",
        "Look the case up, then hand back. <<call=check_sanctions>> <<call=transfer_to_triage>> <<tokens=30>>",
        tools=[check_sanctions],
        handoffs=["triage"],
    )
    billing = at.agent("billing", "Settle the case. <<tokens=40>> <<say=TERMINATE>>", handoffs=["triage"])
    condition = TextMentionTermination("TERMINATE") | MaxMessageTermination(20)
    return Swarm(
        [triage, refunds, billing], termination_condition=condition
    ), "My invoice is wrong and I want a refund."


def nested(at: Endpoint) -> tuple[BaseGroupChat, str]:
    """A team as a participant of a team, and a society of mind as another."""
    desk = RoundRobinGroupChat(
        [
            at.agent(
                "researcher", "Find facts. <<tokens=25>>", tools=[search_news], reflect_on_tool_use=True
            ),
            at.agent("drafter", "Draft from the facts. <<tokens=20>>"),
        ],
        max_turns=2,
        name="desk",
        description="a desk that drafts",
    )
    board = RoundRobinGroupChat(
        [
            at.agent("optimist", "Argue for it. <<tokens=20>>"),
            at.agent("sceptic", "Argue against it. <<tokens=20>>"),
        ],
        max_turns=2,
    )
    judge = SocietyOfMindAgent(
        "judge", team=board, model_client=at.client(), description="a judge with a board"
    )
    lead = at.agent("lead", "Give the brief. <<tokens=20>>")
    team = RoundRobinGroupChat([lead, desk, judge], max_turns=3, name="newsroom")
    return team, "Report on the harbour expansion."


def agenttools(at: Endpoint) -> tuple[BaseGroupChat, str]:
    """An agent that calls an agent and a team as tools, both at once, and a tool that raises."""
    expert = at.agent(
        "expert", "Answer in depth. <<tokens=40>>", tools=[query_prices], reflect_on_tool_use=True
    )
    panel = SelectorGroupChat(
        [
            at.agent("first", "Open the panel. <<tokens=20>>"),
            at.agent("second", "Close the panel. <<tokens=20>>"),
        ],
        model_client=at.client(),
        max_turns=2,
    )
    chair = at.agent(
        "chair",
        "Ask the expert and the panel, then decide. <<tokens=40>> <<call=expert,panel,broken_feed>>",
        tools=[
            AgentTool(expert, return_value_as_last_message=True),
            TeamTool(panel, name="panel", description="a panel of two", return_value_as_last_message=True),
            broken_feed,
        ],
        reflect_on_tool_use=True,
    )
    return RoundRobinGroupChat([chair], max_turns=1), "Is the price fair?"


def streaming(at: Endpoint) -> tuple[BaseGroupChat, str]:
    """Streaming calls, of which one agent's report their usage and the other's do not."""
    counted = at.client(stream_options={"include_usage": True})
    one = at.agent("counted", "Answer. <<tokens=12>>", client=counted, model_client_stream=True)
    two = at.agent("uncounted", "Answer. <<tokens=9>>", model_client_stream=True, tools=[query_prices])
    return RoundRobinGroupChat([one, two], max_turns=3), "Compare two harbours."


SCENARIOS: dict[str, Scenario] = {
    "graphflow": graphflow,
    "graphloop": graphloop,
    "swarm": swarm,
    "nested": nested,
    "agenttools": agenttools,
    "streaming": streaming,
}

WITHOUT_SPANS = {"graphloop", "streaming"}
"""Scenarios recorded as an application without tracing would be: the event log and the run stream only."""
