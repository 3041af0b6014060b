"""The documents of the standard of which spec/schemas/ has a JSON Schema: add a document here, then run make proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semtrace.engine.catalog import Device, ModelShape
from semtrace.engine.cost import LinearCost
from semtrace.engine.document import EngineDocument
from semtrace.engine.roofline import RooflineCost
from semtrace.engine.table import TableCost
from semtrace.graph.plan import Plan
from semtrace.live.settings import HttpSettings
from semtrace.live.vllm.settings import VllmSettings
from semtrace.records.execution import ExecutionHeader
from semtrace.replay.ideal import IdealSettings
from semtrace.replay.scenario import Scenario
from semtrace.store.manifest import Manifest
from semtrace.stream.exchange import StreamFacts
from semtrace.sweep.document import SweepDocument
from semtrace.transform.lineage import Step

if TYPE_CHECKING:
    from semtrace.records.document import Document


@dataclass(frozen=True)
class Published:
    """A document with a schema.

    Attributes:
        model: its model.
        title: what it is, for people.
        also_required: members that must be there where it is read, although a program that makes it fills them in later.
        filled_in: members that who reads it fills in where they are left out.
        by_path: members that may also be the path of a document, which who reads it puts in their place.
        not_said: what a document must keep besides that its schema does not say, as it is about several members at once.
    """

    model: type[Document]
    title: str
    also_required: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()
    by_path: tuple[str, ...] = ()
    not_said: str | None = None


DOCUMENTS = {
    "manifest": Published(Manifest, "Manifest of a bundle (container.md)", also_required=("digest",)),
    "execution-header": Published(ExecutionHeader, "Header of an execution (container.md)"),
    "plan": Published(Plan, "Release plan (plans.md)"),
    "constraints": Published(
        Plan, "Constraints that become a custom plan (plans.md)", filled_in=("work_digest", "name")
    ),
    "scenario": Published(Scenario, "Scenario (scenario.md)"),
    "ideal-settings": Published(IdealSettings, "Settings of the backend `ideal` (release.md)"),
    "http-settings": Published(
        HttpSettings,
        "Settings of the backend `http` (live.md)",
        not_said="`url` has a host, no user, query or fragment; `api_key_env` is the name of an environment variable.",
    ),
    "vllm-settings": Published(VllmSettings, "Settings of the backend `vllm` (vllm.md)"),
    "engine": Published(
        EngineDocument,
        "Simulated serving engine (engine.md)",
        by_path=("cost",),
        not_said="Exactly one of `blocks`, `kv_tokens` and `kv_bytes` is there; `kv_bytes` needs a model. Members of model and "
        "cost fit each other.",
    ),
    "model": Published(
        ModelShape,
        "Shape of a model (cost.md)",
        not_said="Heads are a multiple of key-value heads. The members on experts come together; without them there is an "
        "`intermediate_size`. Bytes of a weight, of an element and of a token's KV cache are whole bits or bytes.",
    ),
    "device": Published(Device, "Figures of an accelerator (cost.md)"),
    "cost-linear": Published(LinearCost, "Linear cost of a step (cost.md)", also_required=("kind",)),
    "cost-roofline": Published(
        RooflineCost,
        "Cost of a step by a roofline (cost.md)",
        also_required=("kind",),
        not_said="`allreduce_ns` is there with more than one device, and no member on all-reduces with one.",
    ),
    "cost-table": Published(
        TableCost,
        "Cost of a step by a table (cost.md)",
        also_required=("kind",),
        not_said="The points of each axis ascend from 0; `ns` has a time for each combination of them, each from 1 to 2^53 - 1.",
    ),
    "sweep": Published(SweepDocument, "Sweep: a grid of replays (`semtrace sweep`)"),
    "lineage-step": Published(Step, "An entry of the lineage (lineage.md)"),
    "stream-facts": Published(StreamFacts, "Facts of an exchange stream (stream.md)"),
}
"""By the name of the schema's file."""
