"""Traces of chat requests for tests of live replay: one that offers a tool, and one that does not."""

import json

from semtrace.build.builder import TraceBuilder
from semtrace.records.enums import OperationKind, Role

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def chat_trace(tokens=(9, 4), output=3):
    """The first call offers a tool, the second, after it, none; their prompts have these numbers of tokens, 2 and 1 of them the user's."""
    made = TraceBuilder()
    task = made.task("t")
    first = made.operation(task, OperationKind.LLM, "a", prompt_tokens=tokens[0], output_tokens=output)
    made.segment(first, Role.TOOLS, json.dumps(TOOLS), message=0)
    made.segment(first, Role.USER, "t5 t6", message=1)
    second = made.operation(task, OperationKind.LLM, "b", prompt_tokens=tokens[1], output_tokens=output)
    made.segment(second, Role.USER, "t7", message=0)
    made.edge(second, first)
    return made.build().trace
