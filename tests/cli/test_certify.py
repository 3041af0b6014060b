"""`semtrace certify` and `semtrace certificate`, with testees as processes, right and wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from semtrace_conformance import selfcheck
from tests_of_cli import run

ROOT = Path(__file__).parents[2] / "conformance"
OURS = f"{sys.executable} {ROOT / 'testees' / 'semtrace_testee.py'}"


def fake(name, script="standalone"):
    return f"{sys.executable} {ROOT / 'fakes' / script}.py {name}"
