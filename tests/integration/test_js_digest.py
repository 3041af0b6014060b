"""The digests of bundles, made by another implementation in another language that knows only the text of the standard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from semtrace.store.bundle import open_bundle, rewrite_bundle, write_bundle
from semtrace.store.container import MANIFEST, write_container
from semtrace.testing import random_trace
from semtrace_adapters.autogen import ADAPTER
from semtrace_adapters.base import ImportOptions
from support.vectors import FOLDER, NAMES, ROOT, agrees, bundle_of, expected

pytestmark = pytest.mark.integration

OLDEST_NODE = (20, 19)
INSTALL = f"install Node.js {OLDEST_NODE[0]}.{OLDEST_NODE[1]} or later with npm (nodejs.org, or your system's packages)"
PROGRAM = ROOT / "build" / "js" / "digest.mjs"


@pytest.fixture(scope="module")
def program():
    """A copy of digest.mjs beside its packages, outside of the tree: imports are looked for beside the program."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.fail(f"there is no Node.js here: {INSTALL}")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_NODE:
        pytest.fail(f"Node.js is {version.strip()}: {INSTALL}")
    folder = PROGRAM.parent
    folder.mkdir(parents=True, exist_ok=True)
    installed = folder / "installed-package-lock.json"
    lock = FOLDER / "package-lock.json"
    if not installed.is_file() or installed.read_bytes() != lock.read_bytes():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.copy(lock, installed)
    shutil.copy(FOLDER / PROGRAM.name, PROGRAM)
    return PROGRAM


def run(program, bundle, *options: str):
    command = ["node", program, "--tables", ROOT / "spec" / "tables.md", *options, bundle]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def answer(program, bundle):
    done = run(program, bundle, "--levels")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_vectors(program, name):
    assert answer(program, bundle_of(name)) == expected(name)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A bundle of a recorded AutoGen team."""
    path = tmp_path_factory.mktemp("real") / "graphflow.semtrace"
    imported = ADAPTER.read([ROOT / "examples" / "autogen" / "graphflow"], ImportOptions())
    write_bundle(path, imported.trace, {"native": imported.execution})
    return path


def test_a_real_bundle(program, real):
    agrees(open_bundle(real), answer(program, real))


def test_a_real_bundle_as_a_directory(program, real, tmp_path):
    rewrite_bundle(open_bundle(real), tmp_path / "unpacked", directory=True)
    assert answer(program, tmp_path / "unpacked") == answer(program, real)


@pytest.mark.parametrize("seed", range(5))
def test_random_traces(program, tmp_path, seed):
    built = random_trace(seed)
    path = tmp_path / "random.semtrace"
    write_bundle(path, built.trace, {"native": built.execution} if built.execution else {})
    agrees(open_bundle(path), answer(program, path))


# -- what is not as the standard has it ---------------------------------------------------------------------------


def members(bundle):
    return {file.path: bytes(memoryview(bundle.read(file))) for file in bundle.files()}


def refusal(program, path, manifest, content):
    write_container(path, [(MANIFEST, manifest), *content.items()], directory=True, overwrite=True)
    done = run(program, path)
    assert done.returncode == 1
    return done.stderr.partition(":")[0]


def test_altered_bundles_are_refused(program, tmp_path):
    bundle = open_bundle(bundle_of("nulls"))
    good, content = bundle.manifest_bytes, members(bundle)
    path = tmp_path / "altered"
    name, raw = next(iter(content.items()))
    assert refusal(program, path, good, content | {name: raw[:-9] + b"\0" + raw[-8:]}) == "ST-BND-012"
    assert refusal(program, path, good, content | {name: raw + b"\0"}) == "ST-BND-012"
    assert refusal(program, path, good, content | {"more": b""}) == "ST-BND-013"
    del content[name]
    assert refusal(program, path, good, content) == "ST-BND-012"


def test_altered_manifests_are_refused(program, tmp_path):
    bundle = open_bundle(bundle_of("nulls"))
    good, content = bundle.manifest_bytes, members(bundle)
    path = tmp_path / "altered"
    assert refusal(program, path, good.replace(b'"1.0', b'"1.9'), content) == "ST-BND-011"
    assert refusal(program, path, good + b"\n", content) == "ST-BND-010"
    twice = good.replace(b'{"digest"', b'{"digest":"","digest"', 1)
    assert refusal(program, path, twice, content) == "ST-BND-010"
    other = bundle.manifest.model_copy(update={"spec_version": "2.0"}).sealed()
    assert refusal(program, path, other, content) == "ST-EVO-001"
    needs = bundle.manifest.model_copy(update={"required_features": ["example.org/x"]}).sealed()
    assert refusal(program, path, needs, content) == "ST-EVO-002"


def test_a_stated_digest_that_the_tables_do_not_have_is_told(program, tmp_path):
    bundle = open_bundle(bundle_of("nulls"))
    stated = bundle.manifest.trace.model_copy(update={"work_digest": bundle.manifest.trace.trace_digest})
    lying = bundle.manifest.model_copy(update={"trace": stated}).sealed()
    assert refusal(program, tmp_path / "lying", lying, members(bundle)) == "ST-DIG-014"


def test_wrong_usage_and_what_is_no_bundle(program, tmp_path):
    assert run(program, tmp_path / "x", "--colour").returncode == 2
    assert run(program, tmp_path / "absent").returncode == 1
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)))
    done = run(program, noise)
    assert (done.returncode, done.stderr.partition(":")[0]) == (1, "ST-BND-001")
