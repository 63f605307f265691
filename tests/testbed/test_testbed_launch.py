"""Starting and ending."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pdbench.testbed import command
from pdbench.testbed.launch import TestbedError, running
from pdbench.testbed.settings import Settings
from tests.testbed.conftest import value

COMMAND = (
    "import typer; from pdbench.testbed import command; app = typer.Typer(); app.command()(command.testbed); app()"
)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids: list[int], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_it_starts_fast_and_leaves_nothing_behind(tmp_path: Path) -> None:
    begun = time.monotonic()
    with running(Settings(log=str(tmp_path)).on_free_ports()) as pull:
        assert time.monotonic() - begun < 5  # half a second when the machine is quiet
        assert set(pull.pids) == {"proxy", "prefill-0", "decode-0"}
        assert len(set(pull.pids.values())) == 3
        os.kill(pull.pids["decode-0"], signal.SIGINT)  # the terminal's Ctrl-C goes to everybody
        assert value(pull.decode_urls[0], "vllm:num_requests_running") == 0
    assert gone(list(pull.pids.values()))


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(mode="colocated", colocated_port=port, log=str(tmp_path))
        with (
            pytest.raises(TestbedError, match=f"port {port} on 127.0.0.1 is in use; .*--colocated-port"),
            running(settings),
        ):
            pass


def test_the_servers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pdbench.testbed.launch import running\n"
        "from pdbench.testbed.settings import Settings\n"
        f"with running(Settings(log={str(tmp_path)!r}).on_free_ports()) as t:\n"
        "    print(*t.pids.values(), flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3 and all(map(alive, pids))
        parent.kill()
    assert gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_json_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    arguments = [sys.executable, "-c", COMMAND, "--port", "0", "--json", "--mode", "push", "--log", str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["simulated"] is True and told["mode"] == "push" and len(told["decode_urls"]) == 1
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
    assert gone(list(told["pids"].values()))


def test_every_setting_is_a_flag_and_nonsense_is_usage() -> None:
    app = typer.Typer()
    app.command()(command.testbed)
    wide = {"COLUMNS": "200", "TERM": "dumb"}
    shown = CliRunner().invoke(app, ["--help"], env=wide)
    assert shown.exit_code == 0 and "SIMULATED" in shown.output
    for field in fields(Settings):
        assert f"--{field.name.replace('_', '-')}" in shown.output
    for words in (["--mode", "nope"], ["--max-num-seqs", "0"], ["--decode-blocks", "3"], ["--no-such-flag"]):
        assert CliRunner().invoke(app, words).exit_code == 2


def test_settings_survive_the_trip_to_the_servers() -> None:
    settings = Settings(mode="push", lease_s=2.5, drop_kv_params=True)
    assert Settings.from_json(settings.to_json()) == settings
    moved = settings.on_ports_from(9000)
    assert (moved.proxy_port, moved.prefill_port, moved.decode_port) == (9000, 9001, 9002)
    with pytest.raises(ValueError, match="lease_s must not be negative"):
        Settings(lease_s=-1)
