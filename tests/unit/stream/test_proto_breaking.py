"""The messages stay what they were when the draft was frozen: what breaks readers is found, what adds is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMAGES = sorted((ROOT / "proto/images").glob("*.binpb"))


def breaking(folder, image):
    beside = Path(sys.executable).with_name("buf")
    buf = str(beside) if beside.is_file() else shutil.which("buf")
    assert buf, "buf belongs to the development environment"
    return subprocess.run(
        [buf, "breaking", folder, "--against", image], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize("image", IMAGES, ids=[image.stem for image in IMAGES])
def test_no_release_is_broken(image):
    done = breaking(ROOT / "proto", image)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "broken"),
    [
        ("stream", "uint64 records = 1;", "uint64 records = 7;", True),
        ("stream", "Content content = 21;", "", True),
        ("trace", "optional int64 arrival_ns = 4;", "optional int32 arrival_ns = 4;", True),
        ("enums", "OUTCOME_SUCCESS = 2;", "OUTCOME_SUCCESS = 9;", True),
        ("stream", "string reason = 2;", "string reason = 2;\n  // More.\n  string more = 3;", False),
    ],
)
def test_what_breaks_is_found(tmp_path, file, old, new, broken):
    folder = tmp_path / "proto"
    shutil.copytree(ROOT / "proto", folder)
    path = folder / f"semtrace/v1/{file}.proto"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    done = breaking(folder, IMAGES[-1])
    assert (done.returncode != 0) == broken, done.stdout
