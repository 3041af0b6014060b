"""MetaGPT 0.8.

What is read, in any combination: the text log (`logs/YYYYMMDD.txt`), loguru's JSON sink, the serialised team
(`team.json`), a workspace with its `.dependencies.json`, the configuration (`config2.yaml`) and totals of tokens.

How a run becomes a trace:

- A run is a task; a budget (`team:invest`) begins one. Roles are sessions, rounds are stages.
- Each call of the model is an operation; so is an action that asks no model, and the end of an action that puts
  together what several calls at once returned.
- MetaGPT starts a round when every role is done with the one before: control edges, round by round.
- Each role remembers messages on its own: a state for each role, appended to in the order of arrival. The
  environment's history is a state of all published messages. Files of the workspace are states.
"""

from .adapter import MetaGPTAdapter

ADAPTER = MetaGPTAdapter()

__all__ = ["ADAPTER", "MetaGPTAdapter"]
