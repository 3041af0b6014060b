"""The first try in docs/live.md, as its reader types it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(heading: str) -> list[list[str]]:
    """The blocks of commands under a heading of the page."""
    page = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [block.split("\n") for block in re.findall(r"(?m)(?:^ {4}.+\n?)+", section)]


def test_a_first_try_without_a_model(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    bin_of = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_of}{os.pathsep}{os.environ['PATH']}"}
    wide = (
        "--tolerance-ns 200000000",
        "--tolerance-ns 3600000000000",
    )  # how punctual this machine is is not tested
    first, second = [
        [line.strip().replace("8000", port).replace(*wide) for line in block if line.strip()]
        for block in commands("A first try, without a model")
    ]
    made = subprocess.run(first[0], shell=True, cwd=tmp_path, env=environment, check=True)
    assert made.returncode == 0
    with subprocess.Popen(first[1].split(), cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            assert port in server.stdout.readline().decode()
            for line in second:
                done = subprocess.run(
                    line,
                    check=False,
                    shell=True,
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert "clean" in done.stdout
        finally:
            server.terminate()
            server.wait(20)
    requests = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert sum('"semtrace-0-' in line for line in requests) == 10
