"""The two MetaGPT teams that the recordings are made of.

The *custom* team has every shape that a log has to be read for: a fan-out whose calls overlap, a role that
makes two calls at once, a join, a revision loop by directed messages, and an action without a model call.
The *sop* team is MetaGPT's own product manager, architect, project manager and engineer.

Imported only after ``METAGPT_PROJECT_ROOT`` is set and the configuration written: MetaGPT fixes its folders
and reads its configuration when it is imported.
"""

from __future__ import annotations

import asyncio
from typing import Any

from metagpt.actions import Action, UserRequirement
from metagpt.roles import Architect, Engineer, ProductManager, ProjectManager, Role
from metagpt.schema import Message
from metagpt.utils.common import any_to_str


class Brief(Action):
    """The first step: what is asked for."""

    name: str = "Brief"

    async def run(self, history: list[Message]) -> str:
        """Ask the model."""
        return await self._aask(f"State the aim and the limits of this request.\n\n{history[-1].content}")


class AssessData(Action):
    """One of three assessments of the brief."""

    name: str = "AssessData"

    async def run(self, history: list[Message]) -> str:
        """Ask the model."""
        return await self._aask(f"Assess what happens to the data.\n\nBrief:\n{history[-1].content}")


class AssessLatency(Action):
    """One of three assessments of the brief."""

    name: str = "AssessLatency"

    async def run(self, history: list[Message]) -> str:
        """Ask the model."""
        return await self._aask(f"Assess what happens to response times.\n\nBrief:\n{history[-1].content}")


class AssessCost(Action):
    """Two calls at once, which a log cannot tell apart when they end."""

    name: str = "AssessCost"

    async def run(self, history: list[Message]) -> str:
        """Ask the model twice."""
        brief = history[-1].content
        parts = await asyncio.gather(
            self._aask(f"Estimate the one-time cost.\n\nBrief:\n{brief}"),
            self._aask(f"Estimate the monthly cost.\n\nBrief:\n{brief}"),
        )
        return "One-time: " + parts[0] + "\nMonthly: " + parts[1]


class Compose(Action):
    """Writes the plan from everything in memory."""

    name: str = "Compose"

    async def run(self, history: list[Message]) -> str:
        """Ask the model."""
        parts = "\n---\n".join(m.content for m in history)
        """Ask the model."""
        return await self._aask(f"Write the plan from these notes.\n\n{parts}")


class Verify(Action):
    """Answers the editor alone, by name."""

    name: str = "Verify"

    async def run(self, history: list[Message]) -> Message:
        """Ask the model."""
        text = await self._aask(f"Accept this plan, or say what to revise.\n\nPlan:\n{history[-1].content}")
        return Message(content=text, role="Checker", cause_by=Verify, sent_from="Checker", send_to={"Lena"})


class Release(Action):
    """Formats the accepted plan; asks no model."""

    name: str = "Release"

    async def run(self, history: list[Message]) -> str:
        """Put the plan under a heading."""
        plan = [m for m in history if m.cause_by == any_to_str(Compose)][-1]
        return "RELEASED PLAN\n=============\n" + plan.content


class Coordinator(Role):
    """Starts the work."""

    name: str = "Iris"
    profile: str = "Coordinator"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([Brief])
        self._watch([UserRequirement])


class DataReviewer(Role):
    """Assesses the brief."""

    name: str = "Noor"
    profile: str = "Data Reviewer"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([AssessData])
        self._watch([Brief])


class LatencyReviewer(Role):
    """Assesses the brief."""

    name: str = "Tove"
    profile: str = "Latency Reviewer"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([AssessLatency])
        self._watch([Brief])


class CostReviewer(Role):
    """Assesses the brief."""

    name: str = "Omar"
    profile: str = "Cost Reviewer"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([AssessCost])
        self._watch([Brief])


class Editor(Role):
    """Joins the assessments, revises when told to, releases when the plan is accepted."""

    name: str = "Lena"
    profile: str = "Editor"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([Compose, Release])
        self._watch([AssessData, AssessLatency, AssessCost, Verify])

    async def _think(self) -> bool:
        accepted = any(
            m.cause_by == any_to_str(Verify) and m.content.startswith("ACCEPT") for m in self.rc.news
        )
        self._set_state(1 if accepted else 0)
        return True


class Checker(Role):
    """Accepts the plan or sends it back."""

    name: str = "Kai"
    profile: str = "Checker"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_actions([Verify])
        self._watch([Compose])


def custom_roles() -> list[Role]:
    return [Coordinator(), DataReviewer(), LatencyReviewer(), CostReviewer(), Editor(), Checker()]


def sop_roles() -> list[Role]:
    return [ProductManager(), Architect(), ProjectManager(), Engineer(n_borg=1, use_code_review=True)]
