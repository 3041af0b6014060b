"""What the teams are asked to do, and what the scripted server answers their prompts (see its rules file)."""

from __future__ import annotations

import json
from typing import Any

CUSTOM_IDEA = "Plan the move of the ticket service to a new data centre"
SOP_IDEA = "Write a command-line tool that converts temperatures"


def _content(fields: dict[str, Any]) -> str:
    """A reply in the form that MetaGPT's action nodes parse."""
    return "[CONTENT]\n" + json.dumps(fields, indent=4) + "\n[/CONTENT]"


_PRD = _content(
    {
        "Language": "en_us",
        "Programming Language": "Python",
        "Original Requirements": SOP_IDEA,
        "Project Name": "degrees",
        "Product Goals": ["Convert between Celsius, Fahrenheit and Kelvin", "Refuse impossible temperatures"],
        "User Stories": ["As a cook, I want to convert an oven temperature", "As a student, I want Kelvin"],
        "Competitive Analysis": ["units: general, hard to remember", "Search engines: need a network"],
        "Competitive Quadrant Chart": 'quadrantChart\n    title "Reach and ease"\n    x-axis "Hard" --> "Easy"\n'
        '    y-axis "Narrow" --> "Broad"\n    "units": [0.3, 0.9]\n    "degrees": [0.9, 0.2]',
        "Requirement Analysis": "Small, exact, without dependencies",
        "Requirement Pool": [["P0", "Convert a value between two scales"], ["P1", "Refuse values below 0 K"]],
        "UI Design draft": "degrees VALUE FROM TO prints one number",
        "Anything UNCLEAR": "",
    }
)
_DESIGN = _content(
    {
        "Implementation approach": "Pure functions for the scales, argparse for the command line",
        "File list": ["scales.py", "main.py"],
        "Data structures and interfaces": "\nclassDiagram\n    class Scales {\n        +to_kelvin(value: float, scale: str)"
        " float\n        +from_kelvin(value: float, scale: str) float\n    }\n    class Main {\n        +main() int\n    }\n"
        "    Main --> Scales\n",
        "Program call flow": "\nsequenceDiagram\n    participant M as Main\n    participant S as Scales\n"
        "    M->>S: to_kelvin(value, scale)\n    S-->>M: kelvin\n    M->>S: from_kelvin(kelvin, scale)\n",
        "Anything UNCLEAR": "",
    }
)
_TASKS = _content(
    {
        "Required packages": ["No third-party dependencies required"],
        "Required Other language third-party packages": ["No third-party dependencies required"],
        "Logic Analysis": [
            ["scales.py", "to_kelvin and from_kelvin"],
            ["main.py", "argument parsing, output"],
        ],
        "Task list": ["scales.py", "main.py"],
        "Full API spec": "",
        "Shared Knowledge": "Kelvin is the scale between the two others",
        "Anything UNCLEAR": "",
    }
)
_SCALES = '''"""Temperature scales, by way of Kelvin."""


def to_kelvin(value: float, scale: str) -> float:
    if scale == "C":
        return value + 273.15
    return value if scale == "K" else (value + 459.67) * 5 / 9


def from_kelvin(value: float, scale: str) -> float:
    if scale == "C":
        return value - 273.15
    return value if scale == "K" else value * 9 / 5 - 459.67
'''
_MAIN = '''"""Converts a temperature on the command line."""

import sys

from scales import from_kelvin, to_kelvin


def main() -> int:
    value, source, target = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    print(from_kelvin(to_kelvin(value, source), target))
    return 0
'''
_MAIN_CHECKED = _MAIN.replace(
    "    print(", "    if to_kelvin(value, source) < 0:\n        return 1\n    print("
)


def _code(text: str) -> str:
    return f"```python\n{text}```"


def _review(answers: str, actions: str, verdict: str) -> str:
    return f"## Code Review\n{answers}\n\n## Actions\n{actions}\n\n## Code Review Result\n{verdict}\n"


CUSTOM_RULES: list[dict[str, str]] = [
    # The first draft is sent back, the second is taken.
    {"match": r"Accept this plan.*DRAFT TWO", "reply": "ACCEPT: the plan is complete.", "where": "last"},
    {
        "match": r"Accept this plan",
        "reply": "REVISE: say who decides to turn back, and when.",
        "where": "last",
    },
    {
        "match": r"Write the plan from these notes.*REVISE: ",
        "reply": "DRAFT TWO. Copy the data first, move readers, then writers; the coordinator decides at each step.",
        "where": "last",
    },
    {
        "match": r"Write the plan from these notes",
        "reply": "DRAFT ONE. Copy the data first, then move readers and writers in one night.",
        "where": "last",
    },
]

SOP_RULES: list[dict[str, str]] = [
    # Each prompt holds the documents of the steps before it, so the last step is looked for first.
    {"match": r"^(?=.*Logic Analysis)(?=.*## format example)", "reply": _TASKS, "where": "last"},
    {"match": r"^(?=.*Program call flow)(?=.*## format example)", "reply": _DESIGN, "where": "last"},
    {"match": r"^(?=.*Requirement Pool)(?=.*## format example)", "reply": _PRD, "where": "last"},
    {"match": r"# Instruction: rewrite the `main\.py`", "reply": _code(_MAIN_CHECKED), "where": "last"},
    {
        "match": r"return 1.*filename should be `main\.py`",
        "reply": _review("1. Yes.\n2. Yes.", "pass", "LGTM"),
        "where": "last",
    },
    {
        "match": r"filename should be `main\.py`",
        "reply": _review(
            "1. No, values below 0 K are not refused.\n2. Yes.", "1. Return 1 below 0 K.", "LBTM"
        ),
        "where": "last",
    },
    {
        "match": r"filename should be `scales\.py`",
        "reply": _review("1. Yes.\n2. Yes.", "pass", "LGTM"),
        "where": "last",
    },
    {"match": r"## Code: main\.py", "reply": _code(_MAIN), "where": "last"},
    {"match": r"## Code: scales\.py", "reply": _code(_SCALES), "where": "last"},
]
