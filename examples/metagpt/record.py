"""Record a real MetaGPT team against the scripted server, with everything that MetaGPT itself leaves behind.

Runs in an environment of its own (``make .venvs/metagpt/.installed``) and talks to nothing but 127.0.0.1::

    .venvs/metagpt/bin/python examples/metagpt/record.py custom OUT
    .venvs/metagpt/bin/python examples/metagpt/record.py sop OUT
    .venvs/metagpt/bin/python examples/metagpt/record.py custom OUT --stream --runs 2

OUT then holds ``log.txt`` (MetaGPT's text log), ``loguru_serialized.jsonl`` (the same lines from loguru's own
JSON sink), ``team/team.json``, ``workspace/`` where the team wrote files, ``config2.yaml``, ``env_history.txt``
and ``costs.json`` (one line per run), and ``server_access.jsonl``: what the server saw, to compare with. Names of
folders of this machine are replaced in all of them.

With ``--stream`` MetaGPT streams, its default; the server volunteers no usage, and the token counts are lost,
as they are with most servers. Request 3 fails once with status 500, which the client's own retry hides;
``--fail N`` has request N refused with status 400 instead, which ends the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "servers"))

from launch import start_server  # noqa: E402
from replies import CUSTOM_IDEA, CUSTOM_RULES, SOP_IDEA, SOP_RULES  # noqa: E402

CONFIG = """llm:
  api_type: openai
  base_url: {url}
  api_key: none
  model: gpt-4o
  stream: {stream}
"""
CONFIG_FILE = "config2.yaml"


def write_rules(path: Path, rules: list[dict[str, str]], fail: int | None) -> None:
    """The server's rules file; replies are templates there, so backslashes are doubled."""
    escaped = [{**rule, "reply": rule["reply"].replace("\\", "\\\\")} for rule in rules]
    fault = {"request": 3, "status": 500} if fail is None else {"request": fail, "status": 400}
    path.write_text(json.dumps({"rules": escaped, "faults": [fault]}), encoding="utf-8")


async def run_team(kind: str, out: Path, runs: int) -> None:
    """Run the team, a new one each time, and write what MetaGPT can say of itself afterwards."""
    import teams
    from loguru import logger
    from metagpt.context import Context
    from metagpt.team import Team

    sinks = [
        logger.add(out / "log.txt", level="DEBUG"),
        logger.add(out / "loguru_serialized.jsonl", level="DEBUG", serialize=True),
    ]
    for _ in range(runs):
        team = Team(context=Context())
        team.hire(teams.custom_roles() if kind == "custom" else teams.sop_roles())
        team.invest(5.0)
        idea = CUSTOM_IDEA if kind == "custom" else SOP_IDEA
        await team.run(n_round=10 if kind == "custom" else 6, idea=idea)
        (out / "team").mkdir(exist_ok=True)
        team.serialize(out / "team")
        with (out / "env_history.txt").open("a", encoding="utf-8") as history:
            history.write(team.env.history + "\n")
        with (out / "costs.json").open("a", encoding="utf-8") as costs:
            costs.write(json.dumps(team.cost_manager.get_costs()._asdict()) + "\n")
        if team.env.context.git_repo:
            shutil.copytree(
                team.env.context.git_repo.workdir, out / "workspace", ignore=shutil.ignore_patterns(".git")
            )
    for sink in sinks:
        logger.remove(sink)


def scrub(out: Path, root: Path) -> None:
    """Replace the names of this machine's folders in every recorded file."""
    replacements = {
        str(root): "/run",
        sys.prefix: "/venv",
        sys.base_prefix: "/python",
        str(HERE): "/examples",
        str(out): "/recording",
        "openaipublic.blob.core.windows.net": "token-tables.example",  # where the client looks for its tables
    }
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        text = path.read_text(encoding="utf-8")
        for old, new in replacements.items():
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


def record(kind: str, out: Path, *, stream: bool, runs: int, fail: int | None) -> None:
    """Make one recording in ``out``, which must not exist or be empty."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SystemExit(f"record.py: {out} is not empty")
    out = out.resolve()
    with tempfile.TemporaryDirectory(prefix="metagpt-") as folder:
        root = Path(folder).resolve()
        (root / "config").mkdir()
        os.environ |= {
            "METAGPT_PROJECT_ROOT": str(root),
            "HOME": str(root),
            # Token counting by the client would fetch its tables: refuse at once what cannot be had anyway.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        }
        os.chdir(root)
        config = root / "config" / CONFIG_FILE
        write_rules(root / "rules.json", CUSTOM_RULES if kind == "custom" else SOP_RULES, fail)
        with start_server(out / "server_access.jsonl", root / "rules.json") as server:
            config.write_text(CONFIG.format(url=server.url, stream=str(stream).lower()), encoding="utf-8")
            shutil.copy(config, out / CONFIG_FILE)
            asyncio.run(run_team(kind, out, runs))
        os.chdir(HERE)
        scrub(out, root)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Record a MetaGPT team against the scripted server.")
    parser.add_argument("kind", choices=["custom", "sop"], help="which team")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--stream", action="store_true", help="stream replies, without usage")
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of the team, one after the other, in one log"
    )
    parser.add_argument("--fail", type=int, metavar="N", help="refuse the server's N-th request")
    options = parser.parse_args()
    if options.runs != 1 and options.kind == "sop":
        parser.error("--runs is for the custom team: the other writes one workspace")
    record(options.kind, options.out, stream=options.stream, runs=options.runs, fail=options.fail)


if __name__ == "__main__":
    main()
