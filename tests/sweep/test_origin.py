"""What a run says it measured: the commit from CI's variables or from git, the driver from the kernel's own file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pdbench.sweep.origin import REVISION_VARIABLES, driver, origin, revision


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in REVISION_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)


def git(*words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_that_is_checked_out_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert revision() is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v1")
    assert revision() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert revision() == f"{git('rev-parse', 'HEAD')}-dirty"


@pytest.mark.parametrize("name", REVISION_VARIABLES)
def test_what_ci_says_comes_first(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "abc123")
    assert origin()["revision"] == "abc123"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 16 03:26:11 UTC 2025\n", "570.133.20"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("something else\n", None),
    ],
)
def test_the_driver(tmp_path: Path, text: str, version: str | None) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    assert driver(file) == version
    assert driver(tmp_path / "absent") is None
