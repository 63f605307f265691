"""Every wrong use of the command line is said in one way: a sentence of pdbench's, and where the flags are."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdbench.cli import folded, main, say
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["sweep", "--rats", "1"], "no such option: --rats", "pdbench sweep --help"),
        (["slots", "--rates", "8"], "no such option: --rates (here it is --qps).", "pdbench slots --help"),
        (["plan", "ratio", "--output-len", "8"], "(here it is --out-tokens).", "pdbench plan ratio --help"),
        (["plan", "crossover", "--model", "Qwen3-8B"], "missing option '--prefill'", "tokens/s (50000)"),
        (["sweep", "--repeats", "x"], "invalid value for '--repeats'", "pdbench sweep --help"),
        (["sweep", "--max-num-seqs", "0"], "invalid value for '--max-num-seqs'", "pdbench sweep --help"),
        (["sweep", "now"], "got unexpected extra argument", "pdbench sweep --help"),
        (["swep"], "no such command 'swep'", "pdbench --help"),
        (["sweeep"], "no such command 'sweeep'", "pdbench --help"),
        (["plan", "kv", "--model", "Qwen3-32B", "--pool", "40"], "--pool 40 is 40 bytes: one block", "such as 40GiB"),
        (["plan", "k"], "no such command 'k'", "pdbench plan --help"),
        (["plan", "kv", "--tp"], "option '--tp' requires an argument", "pdbench plan --help"),
        (["report"], "missing argument 'RUN...'", "pdbench report --help"),
        (["testbed", "--mode", "sideways"], "mode must be one of pull, push, colocated", "pdbench testbed --help"),
        (["sweep", "--testbed", "sideways"], "--testbed is one of pull", ""),
        (["sweep", "--testbed", "pull", "--api-key-file", "nowhere"], "--api-key-file nowhere: No such file", ""),
        (["watch", "--proxy", "http://127.0.0.1:1", "--export", "abc"], "--export wants PORT", ""),
    ],
)
def test_a_wrong_use_is_one_sentence(
    words: list[str], said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert shown.out == "" and len(lines) <= 2, shown
    assert lines[0].startswith("pdbench: ") and said in lines[0] and lines[0].endswith((".", "?"))
    assert not lines[0].endswith("?.")
    assert hint in "".join(lines[1:])


def test_a_key_file_that_is_no_text_is_refused_without_a_word_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"sk-secret\xff\xfe\n")
    assert main(["sweep", "--testbed", "pull", "--api-key-file", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"--api-key-file {file} holds bytes that are no text." in said
    assert "secret" not in said and "0xff" not in said and "Traceback" not in said


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["sweep", "-h"], 0), (["--version"], 0), (["plan"], 2)])
def test_help_is_no_error(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    shown = capsys.readouterr()
    assert "pdbench:" not in shown.out + shown.err


@pytest.mark.parametrize("columns", ["80", "160"])
@pytest.mark.parametrize(
    "verb", ["sweep", "slots", "plan ratio", "plan compare", "plan crossover", "probe-transfer", "testbed", "watch"]
)
def test_many_options_stand_under_headings(
    verb: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    groups = [part for part in text.split("\n\n") if ":\n  -" in part]
    sizes = [sum(line.startswith("  -") for line in part.splitlines()) for part in groups]
    assert len(groups) > 1 and max(sizes) <= 20, sizes
    assert groups[-1].startswith("Options:\n") and "--help" in groups[-1]
    assert all(len(line) <= int(columns) for line in text.splitlines())
    if verb == "sweep":
        assert "  --prompt-lens, --random-input-len, --input-len LIST" in text, "a name that is cut cannot be typed"
        assert re.search(r"--proxy URL +\S", text) and re.search(r"--duration TIME +\S.*60s", text)
    assert not re.findall(r"<(?:list|str|int|float|path)\b.*", text), "a type of Python's tells a reader nothing"


def test_who_goes_on_with_servers_that_are_gone_is_told_so_in_whole_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep(tmp_path / "run", {"default": Settings()}, rates=[4], prompt_lens=[64], duration_s=1.0).run
    assert main(["sweep", "--resume", str(run.path), "--workers", "2"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert ". Go on: pdbench sweep --resume " in said and f"{run.path} --workers 2, or" in said, said


def test_a_port_in_use_is_said_like_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["testbed", "--port", port]) == 2
        assert main(["testbed", "--port", "0", "--proxy-port", port]) == 2
    assert main(["testbed", "--port", "65536"]) == 2
    first, given, second = capsys.readouterr().err.splitlines()
    assert f"port {port} on" in given and "--proxy-port" in given, "a port that was given is not moved by --port"
    assert first.startswith("pdbench: the SIMULATED deployment did not start: port ") and "is in use" in first
    assert second.startswith("pdbench: ") and "is no port" in second


def test_what_exists_is_not_to_be_resumed_by_an_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[1] / "imports" / "files" / "vllm-detailed-1.json"
    (tmp_path / "run.json").write_text("{}")
    assert main(["import", str(file), "--out", str(tmp_path)]) == 2
    assert "resume" not in capsys.readouterr().err
    assert main(["sweep", "--out", str(tmp_path)]) == 2
    assert f"sweep --resume {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "pdbench: recipe.toml: unknown key max_num_sequences. Known are: api_key_env, api_key_file, engine, link_gb_s.",
        "  Go on: pdbench sweep --resume runs/a-long-name/2026 --repeats 3, or see what there is: pdbench report X/Y",
        "  See what it serves: curl http://a-host-with-a-long-name.example.org:8192/prefix/v1/models, then give it.",
        f"pdbench: /{'x' * 120} is not TOML.",
    ],
)
def test_error_lines_are_folded_between_words_and_commands_stay_whole(text: str) -> None:
    lines = folded(text, 80).splitlines()
    commands = [
        "pdbench sweep --resume runs/a-long-name/2026 --repeats 3",
        "pdbench report X/Y",
        "curl http://a-host-with-a-long-name.example.org:8192/prefix/v1/models",
    ]
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(len(line) <= 80 or "x" * 120 in line for line in lines) and len(lines) > 1
    assert all(any(command in line for line in lines) for command in commands if command in text)
    assert folded(text, None) == text


def test_a_note_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "note: prefill-0: max_model_len is not said by the server, so prompts are sent as they were asked."
    parent, child = pty.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(child, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        say(note)
        lines = os.read(parent, 65536).decode().splitlines()
    os.close(parent)
    assert len(lines) == 2 and max(map(len, lines)) <= 80 and " ".join(" ".join(lines).split()) == note


def test_on_a_terminal_an_error_is_as_wide_as_it_and_in_a_file_one_line(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("max_num_sequences = 8\n")
    command = [sys.executable, "-m", "pdbench", "doctor", "--recipe", str(recipe)]
    parent, child = pty.openpty()
    subprocess.run(["stty", "cols", "60"], stdin=child, check=True)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    shown = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    text = b""
    while True:
        try:
            text += os.read(parent, 65536)
        except OSError:  # nobody has the other end open any more
            break
    os.close(parent)
    assert shown.wait() == 2
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()
    assert "prefill_max_num_seqs" in "".join(plain) and all(len(x) <= 60 or str(recipe) in x for x in plain)
    filed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert len(filed.stderr.splitlines()) == 2


# Runs the command line, and Ctrl-C comes while the first argument's module is looked for.
INTERRUPTED = """
import os, runpy, signal, sys

module = sys.argv.pop(1)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # handlers run between two steps
                pass

sys.meta_path.insert(0, Finder)
runpy.run_module("pdbench", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["pdbench.cli", "typer", "pdbench.littles_law.plan_command", "rich.console"])
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_modules_are_imported(module: str, ignored: bool) -> None:
    before = "trap '' INT; " if ignored else ""
    words = [sys.executable, "-c", INTERRUPTED, module, "plan", "kv", "--model", "Qwen3-32B"]
    done = subprocess.run(["sh", "-c", before + 'exec "$@"', "sh", *words], capture_output=True, text=True, timeout=60)
    if ignored:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "pdbench: interrupted.\n")
