"""Each rule that a recipe can break: broken by one edit it is named, and in the healthy recipe it passes."""

# ruff: noqa: E501  (a broken recipe is one edit, easier to read on one line)

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.cli import main
from pdbench.probe.doctor.command import entries_of
from pdbench.probe.doctor.examine import RULES, judged, launches_of, on_paper
from pdbench.probe.doctor.finding import Check
from pdbench.probe.doctor.launch import launch_of, whole_number
from pdbench.recipe import TargetFlags, chosen, read_recipe

HEALTHY = """
mode = "pull"
model = "m"
max_num_seqs = 8

[[server]]
role = "proxy"
url = "http://10.0.0.1:8192"
launch = "python proxy.py --port 8192 --request-timeout 600 --prefill 10.0.0.2:8100 --decode http://10.0.0.3:8200"

[[server]]
role = "prefill"
url = "http://10.0.0.2:8100"
env = { VLLM_NIXL_SIDE_CHANNEL_HOST = "10.0.0.2", VLLM_NIXL_SIDE_CHANNEL_PORT = "5600" }
launch = '''vllm serve m --port 8100 --max-model-len 32768 --dtype bfloat16 --block-size 64
  --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer", "engine_id": "p0", "kv_connector_extra_config": {"kv_lease_duration": 30}}'
'''

[[server]]
role = "decode"
url = "http://10.0.0.3:8200"
env = { VLLM_NIXL_SIDE_CHANNEL_HOST = "10.0.0.3", VLLM_NIXL_SIDE_CHANNEL_PORT = "5600" }
launch = '''vllm serve m --port 8200 --max-model-len 32768 --dtype bfloat16 --block-size 64 --max-num-seqs 8
  --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_connector_extra_config": {"kv_lease_duration": 30}}'
'''

[sweep]
rates = [1, 4]
prompt_lens = [16384]
output_len = 128
num_prompts = 400
"""
PUSH = (("NixlConnector", "NixlPushConnector"), ('mode = "pull"', 'mode = "push"'))
PROXY = 'launch = "python proxy.py --port 8192 --request-timeout 600 --prefill 10.0.0.2:8100 --decode http://10.0.0.3:8200"\n'
DECODE = "--max-num-seqs 8\n"
SECOND = ("[sweep]", '[[server]]\nrole = "prefill"\nurl = "http://10.0.0.4:8100"\n\n[sweep]')

BROKEN: list[tuple[str, str, tuple[tuple[str, str], ...]]] = [
    ("launch-unreadable", "fail", (('"kv_producer", "eng', '"kv_producer, "eng'),)),
    ("launch-unreadable", "fail", (("--dtype bfloat16 --block-size 64\n", "--dtype 'bfloat16\n"),)),
    ("launch-port", "fail", (("--port 8200", "--port 8201"),)),
    ("mixed-modes", "fail", (('"NixlConnector", "kv_role": "kv_consumer"', '"NixlPushConnector", "kv_role": "kv_consumer"'),)),
    ("mixed-modes", "fail", (('mode = "pull"', 'mode = "push"'),)),
    ("connector", "fail", (('"NixlConnector", "kv_role": "kv_consumer"', '"LMCacheConnectorV1", "kv_role": "kv_consumer"'),)),
    ("kv-role", "fail", (('"kv_role": "kv_consumer"', '"kv_role": "kv_producer"'),)),
    ("kv-role", "warn", (('"kv_role": "kv_consumer"', '"kv_role": "kv_both"'),)),
    ("kv-role", "fail", ((', "kv_role": "kv_consumer"', ""),)),
    ("unknown-keys", "fail", (('"kv_role": "kv_consumer"', '"kv_role": "kv_consumer", "kv_rank": 1'),)),
    ("side-channel-port", "fail", (("10.0.0.3", "10.0.0.2"),)),
    ("side-channel-port", "fail", (("10.0.0.3", "10.0.0.2"), ('"5600" }\nlaunch = \'\'\'vllm serve m --port 8200', '"5601" }\nlaunch = \'\'\'vllm serve m --port 8200'), ("--port 8100", "--port 8100 --data-parallel-size 2 --api-server-count 1"))),
    ("side-channel-host", "fail", (('VLLM_NIXL_SIDE_CHANNEL_HOST = "10.0.0.2", ', ""),)),
    ("side-channel-host", "fail", (('VLLM_NIXL_SIDE_CHANNEL_HOST = "10.0.0.2"', 'VLLM_NIXL_SIDE_CHANNEL_HOST = "0.0.0.0"'),)),
    ("layout", "fail", (("--dtype bfloat16 --block-size 64 --max", "--dtype float16 --block-size 64 --max"),)),
    ("layout", "warn", (("--block-size 64 --max-num-seqs", "--block-size 16 --max-num-seqs"),)),
    ("handshake-check", "warn", (('{"kv_lease_duration": 30}', '{"enforce_handshake_compat": false}'),)),
    ("push-limits", "fail", (*PUSH, (DECODE, "--max-num-seqs 8 --pipeline-parallel-size 2\n"))),
    ("push-limits", "fail", (*PUSH, ('{"kv_lease_duration": 30}', '{"bidirectional_kv_xfer": true}'))),
    ("push-limits", "warn", (*PUSH, (', "engine_id": "p0"', ""), (PROXY, ""))),
    ("push-limits", "fail", (*PUSH, (', "engine_id": "p0"', ""), ("--port 8192", "--port 8192 --prefill-engine-id p0"))),
    ("push-limits", "fail", (*PUSH, ("--port 8192", "--port 8192 --prefill-engine-id p1"))),
    ("bidirectional", "fail", (('"kv_consumer", "kv_connector_extra_config": {', '"kv_consumer", "kv_connector_extra_config": {"bidirectional_kv_xfer": true, '),)),
    ("slots-known", "warn", (("max_num_seqs = 8\n", ""), (DECODE, "\n"))),
    ("slots-agree", "fail", ((DECODE, "--max-num-seqs 4\n"),)),
    ("slots-demand", "warn", (("rates = [1, 4]", "rates = [1, 8]"),)),
    ("context", "fail", (("--max-model-len 32768", "--max-model-len 16384"),)),
    ("lease", "warn", (("rates = [1, 4]", "rates = [1, 40]"),)),
    ("lease", "fail", (*PUSH, ("rates = [1, 4]", "rates = [1, 40]"))),
    ("prefix-caching", "fail", (("[sweep]", "[sweep]\nseed = 1"),)),
    ("failure-policy", "warn", (('"kv_role": "kv_consumer"', '"kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"'),)),
    ("dead-settings", "warn", (('VLLM_NIXL_SIDE_CHANNEL_PORT = "5600" }', 'VLLM_NIXL_ABORT_REQUEST_TIMEOUT = "480" }'),)),
    ("statistics-off", "fail", ((DECODE, "--max-num-seqs 8 --disable-log-stats\n"),)),
    ("statistics-off", "warn", ((DECODE, "--max-num-seqs 8 --data-parallel-size 2\n"), ("max_num_seqs = 8\n", "max_num_seqs = 16\n"))),
    ("statistics-off", "warn", (('VLLM_NIXL_SIDE_CHANNEL_PORT = "5600" }', 'NIXL_TELEMETRY = "n" }'),)),
    ("proxy-timeout", "warn", (("--request-timeout 600", "--request-timeout 5s"),)),
    ("proxy-timeout", "warn", (("--request-timeout 600", "--read-timeout-ms 5000"),)),
    ("proxy-timeout", "warn", (('launch = "python', 'env = { UPSTREAM_TIMEOUT = "20" }\nlaunch = "python'),)),
    ("statistics-off", "warn", ((DECODE, "--max-num-seqs 8 --api-server-count 4\n"),)),
    ("statistics-off", "warn", (('VLLM_NIXL_SIDE_CHANNEL_PORT = "5600" }', 'VLLM_LOGGING_LEVEL = "warning" }'),)),
    ("failure-policy", "fail", (('"kv_role": "kv_consumer"', '"kv_role": "kv_consumer", "kv_load_failure_policy": "retry"'),)),
    ("dead-settings", "warn", (('"kv_role": "kv_consumer"', '"kv_role": "kv_consumer", "kv_port": 5601'),)),
    ("layout", "fail", ((DECODE, "--max-num-seqs 8 --speculative-config '{}'\n"),)),
    ("layout", "fail", ((DECODE, "--max-num-seqs 8 --disable-hybrid-kv-cache-manager\n"),)),
    ("served-model", "fail", (("vllm serve m --port 8200", "vllm serve other --port 8200"),)),
    ("served-model", "fail", ((DECODE, "--max-num-seqs 8 --served-model-name other\n"),)),
    ("backends", "fail", (('"kv_consumer", "kv_connector_extra_config": {', '"kv_consumer", "kv_connector_extra_config": {"backends": ["LIBFABRIC"], '),)),
    ("bidirectional", "warn", (('{"kv_lease_duration": 30}', '{"bidirectional_kv_xfer": true}'), (DECODE, "--max-num-seqs 8 --reasoning-parser qwen3\n"))),
    ("side-channel-port", "fail", (('HOST = "10.0.0.2", VLLM_NIXL_SIDE_CHANNEL_PORT = "5600"', 'HOST = "10.0.0.2", VLLM_NIXL_SIDE_CHANNEL_PORT = "8100"'),)),
    ("example-proxy", "warn", (("python proxy.py", "python3 /opt/vllm/toy_proxy_server.py"),)),
    ("example-proxy", "fail", (("python proxy.py", "python disagg_proxy_pushconnector_demo.py"), *PUSH, SECOND)),
    ("push-together", "warn", (("python proxy.py", "python disagg_proxy_pushconnector_demo.py"), *PUSH)),
    ("push-together", "warn", (("python proxy.py", "python toy_proxy_server.py"), *PUSH)),
    ("layout", "fail", ((DECODE, "--max-num-seqs 8 --kv-cache-dtype fp8\n"),)),
    ("layout", "warn", (("--port 8100 --max-model-len 32768 --dtype bfloat16", "--port 8100 --max-model-len 32768"),)),
    ("layout", "warn", (("--block-size 64 --max-num-seqs", "--max-num-seqs"),)),
    ("layout", "fail", ((DECODE, "--max-num-seqs 8 -tp 3\n"), ("--port 8100", "--port 8100 --tensor-parallel-size 8"))),
    ("context", "fail", (("--max-model-len 32768 --dtype bfloat16 --block-size 64 --max", "--max-model-len 8k --dtype bfloat16 --block-size 64 --max"),)),
    ("context", "fail", (("--max-model-len 32768", "--max-model-len 16K"),)),
    ("statistics-off", "warn", ((DECODE, "--max-num-seqs 8 -dp 4\n"),)),
    ("side-channel-port", "fail", (("10.0.0.3", "10.0.0.2"), ('"5600" }\nlaunch = \'\'\'vllm serve m --port 8200', '"5603" }\nlaunch = \'\'\'vllm serve m --port 8200'), ("--port 8100", "--port 8100 -dp 4 --api-server-count 1"))),
    ("side-channel-port", "fail", (("10.0.0.3", "10.0.0.2"), (', VLLM_NIXL_SIDE_CHANNEL_PORT = "5600" }', " }"), ("vllm serve", "env VLLM_NIXL_SIDE_CHANNEL_PORT=5777 vllm serve"))),
    ("kv-role", "fail", (('"kv_role": "kv_consumer"', '"kv_role": "kv_comsumer"'),)),
    ("connector", "fail", (("NixlConnector", "NixlConector"),)),
    ("connector", "warn", (("NixlConnector", "HouseConnector"),)),
    ("engine-id", "fail", (('"kv_role": "kv_consumer"', '"kv_role": "kv_consumer", "engine_id": "p0"'),)),
    ("launch-port", "fail", (("--port 8200 ", ""),)),
    ("lease", "fail", (('{"kv_lease_duration": 30}', '{"kv_lease_duration": "30"}'),)),
    ("slots-agree", "fail", ((DECODE, "--max-num-seqs 0\n"),)),
    ("proxy-routes", "fail", (("--port 8192", "--port 8192 --prefill http://10.0.0.3:8200 --decode http://10.0.0.2:8100"),)),
    ("proxy-routes", "fail", (("--port 8192", "--port 8192 --prefiller-hosts 10.0.0.3 --prefiller-ports 8200"),)),
    ("proxy-routes", "fail", (("--port 8192", "--port 8192 --mode push"),)),
    ("proxy-routes", "fail", (("python proxy.py", "python disagg_proxy_pushconnector_demo.py"),)),
]  # fmt: skip


def checks_of(text: str, folder: Path, tpot_ms: float | None = 10.4) -> list[Check]:
    path = folder / "recipe.toml"
    path.write_text(text)
    recipe = read_recipe(path)
    flags = TargetFlags(recipe=path)
    deployment = chosen(flags, recipe)[0]
    case = on_paper(deployment, launches_of(entries_of(recipe, flags)), recipe.sweep)
    return judged(replace(case, tpot_ms=tpot_ms))


def edited(edits: tuple[tuple[str, str], ...]) -> str:
    text = HEALTHY
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(("rule", "level", "edits"), BROKEN, ids=[f"{one[0]}-{i}" for i, one in enumerate(BROKEN)])
def test_a_broken_recipe_names_the_rule_with_a_fix(
    rule: str, level: str, edits: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    found = [check for check in checks_of(edited(edits), tmp_path) if check.rule == rule and check.level == level]
    assert found and all(check.evidence and check.fix for check in found)


def test_the_healthy_recipe_fails_and_warns_of_nothing(tmp_path: Path) -> None:
    checks = checks_of(HEALTHY, tmp_path)
    assert not [check for check in checks if check.level in ("fail", "warn")]
    passed = {check.rule for check in checks if check.level == "pass"}
    assert {rule for rule, _, edits in BROKEN if PUSH[0] not in edits} - {"push-limits"} <= passed


@pytest.mark.parametrize(
    ("rule", "edits"),
    [
        ("statistics-off", ((DECODE, "--max-num-seqs 8 --data-parallel-size 2 --data-parallel-rank 0\n"), ("max_num_seqs = 8\n", "max_num_seqs = 16\n"))),
        ("layout", ((DECODE, "--max-num-seqs 8 --speculative-config '{}'\n"), ("serve m --port 8100", "serve m --port 8100 --speculative-config '{}'"))),
        ("served-model", (("serve m --port 8100", "serve /models/m --port 8100 --served-model-name m"),)),
        ("backends", (('{"kv_lease_duration": 30}', '{"backends": ["LIBFABRIC", "UCX"]}'),)),
        ("bidirectional", (('{"kv_lease_duration": 30}', '{"bidirectional_kv_xfer": true}'),)),
        ("failure-policy", (('"kv_role": "kv_consumer"', '"kv_role": "kv_consumer", "kv_load_failure_policy": "fail"'),)),
        ("push-together", (("python proxy.py", "python disagg_proxy_pushconnector_demo.py --concurrent-prefill-decode"), *PUSH)),
        ("push-limits", (*PUSH, ("--port 8192", "--port 8192 --prefill-engine-id p0"))),
        ("side-channel-port", (("10.0.0.3", "10.0.0.2"), ("vllm serve m --port 8200", "env -u A VLLM_NIXL_SIDE_CHANNEL_PORT=5777 vllm serve m --port 8200"))),
        ("layout", ((DECODE, "--max-num-seqs 8 --kv-cache-dtype auto\n"), ("--port 8100 --max-model-len 32768 --dtype bfloat16", "--port 8100 --max-model-len 32768 --dtype torch.bfloat16"))),
        ("layout", ((DECODE, "--max-num-seqs 8 -tp 2\n"), ("--port 8100", "--port 8100 --tensor-parallel-size 8"))),
        ("context", (("--max-model-len 32768", "--max-model-len 32.5k"),)),
        ("context", (("--max-model-len 32768", "--max-model-len 32K"),)),
        ("connector", (("NixlConnector", "LMCacheConnectorV1"),)),
        ("connector", (('"kv_connector": "NixlConnector"', '"kv_connector": "Ours", "kv_connector_module_path": "ours"'),)),
        ("launch-port", (("--port 8200 ", ""), ("http://10.0.0.3:8200", "http://10.0.0.3:8000"))),
        ("proxy-routes", (("--port 8192", "--port 8192 --mode pull --prefill 10.0.0.2:8100 --decode=10.0.0.3:8200"),)),
        ("proxy-timeout", (("--request-timeout 600", "--read-timeout-ms 600000 --timeout-keep-alive 5 --timeout 0"),)),
    ],
)  # fmt: skip
def test_what_only_looks_like_it_passes(rule: str, edits: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    assert {check.level for check in checks_of(edited(edits), tmp_path) if check.rule == rule} == {"pass"}


def test_a_healthy_push_recipe_passes_the_push_rules(tmp_path: Path) -> None:
    checks = checks_of(edited(PUSH), tmp_path)
    assert not [check for check in checks if check.level in ("fail", "warn")]
    assert "push-limits" in {check.rule for check in checks if check.level == "pass"}


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("vllm serve m --max-num-seqs 8 --enforce-eager", {"max-num-seqs": "8", "enforce-eager": True}),
        ("A=1 vllm serve m --max_num_seqs=8 --no-enable-prefix-caching", {"max-num-seqs": "8", "enable-prefix-caching": False}),
        ("vllm serve m \\\n  --port 1", {"port": "1"}),
        ("vllm serve m --enforce-eager -tp 8 -dp=4 -x 3", {"enforce-eager": True, "tensor-parallel-size": "8", "data-parallel-size": "4"}),
        (
            "vllm serve --kv-transfer-config.kv_connector X --kv-transfer-config.kv_connector_extra_config.a 3",
            {"kv-transfer-config": {"kv_connector": "X", "kv_connector_extra_config": {"a": 3}}},
        ),
    ],
)  # fmt: skip
def test_command_lines_as_people_write_them(command: str, flags: dict[str, Any]) -> None:
    assert launch_of(command, {}).flags == flags


@pytest.mark.parametrize(
    "command",
    ["A=1 B=2 vllm serve m", "env A=1 B=2 vllm serve m", "/usr/bin/env -i -u C A=1 B=2 vllm serve m",
     "exec env A=1 B=2 nohup vllm serve m", "export A=1 B=2; vllm serve m", "export A=1 && env B=2 vllm serve m"],
)  # fmt: skip
def test_variables_before_the_command_are_its_environment(command: str) -> None:
    launch = launch_of(command, {"A": "0", "C": "3"})
    assert (launch.env["A"], launch.env["B"], launch.words) == ("1", "2", ("vllm", "serve", "m"))
    assert ("C" in launch.env) is ("-u" not in command)


@pytest.mark.parametrize(
    "option",
    ["-e {}", "-e={}", "-e{}", "--env {}", "--env={}", "-dite {}", "-it --rm --gpus all --ipc=host -v /a:/b --init --env {}"],
)  # fmt: skip
@pytest.mark.parametrize("run", ["docker run", "sudo podman container run", "A=1 /usr/bin/nerdctl run"])
@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.32.0 --model", "ghcr.io/us/vllm vllm serve"])
def test_what_a_container_is_given_is_its_environment(option: str, run: str, image: str, tmp_path: Path) -> None:
    """Shown by a rule that reads it: prefill's side channel is on its own address, or on nobody's."""
    for host, level in (("10.0.0.2", "pass"), ("0.0.0.0", "fail"), ("", "fail")):
        given = option.format(f"VLLM_NIXL_SIDE_CHANNEL_HOST={host}")
        command = f"{run} {given} -p 8100:8100 {image} m --port 8100"
        edits = (('VLLM_NIXL_SIDE_CHANNEL_HOST = "10.0.0.2", ', ""), ("vllm serve m --port 8100", command))
        assert {one.level for one in checks_of(edited(edits), tmp_path) if one.rule == "side-channel-host"} == {level}


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("docker run -e A=1 -e B=2=3 image -e C=4", {"A": "1", "B": "2=3"}),
        ("A=1 B=2 docker run -e A -e C image", {"A": "1"}),  # a name alone passes the shell's on
        ("docker run --name e -e A=1 --rm image", {"A": "1"}),
        ("docker run image vllm serve m --env A=1", {}),
        ("docker exec -e A=1 it vllm serve m", {}),
        ("vllm serve m -e A=1", {}),
    ],
)
def test_only_the_options_of_run_are_given_to_a_container(command: str, env: dict[str, str]) -> None:
    assert launch_of(command, {}).env == env
    assert launch_of(command, {"Z": "9"}).env == {**env, "Z": "9"}


@pytest.mark.parametrize(
    ("options", "port", "level"),
    [
        ("-p 8200:8000", 8000, "pass"),
        ("--publish=127.0.0.1:8200:8000/tcp", 8000, "pass"),
        ("-p 8200:8000", 8200, "fail"),
        ("--network host", 8200, "pass"),
        ("-p 8200-8201:8000-8001 --network host", 8000, "fail"),
    ],
)
def test_a_published_port_is_the_one_of_the_url(options: str, port: int, level: str, tmp_path: Path) -> None:
    command = f"docker run {options} -e VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.3 image vllm serve m --port {port}"
    checks = checks_of(edited((("vllm serve m --port 8200", command),)), tmp_path)
    assert {one.level for one in checks if one.rule == "launch-port"} == {level}


@pytest.mark.parametrize(
    ("text", "number"),
    [("8k", 8000), ("8K", 8192), ("1.5m", 1_500_000), ("2M", 2 << 20), ("32768", 32768), ("auto", None), ("1.5K", None), ("-1", None)],
)  # fmt: skip
def test_whole_numbers_as_vllm_reads_them(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_a_connector_that_is_near_is_named(tmp_path: Path) -> None:
    """And nothing claims that no connector is given."""
    checks = checks_of(edited((("NixlConnector", "NixlConector"),)), tmp_path)
    assert all("NixlConnector" in check.fix for check in checks if check.rule == "connector")
    assert "mixed-modes" not in {check.rule for check in checks}


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe that is not up is judged by what it says: exit 1 with a failing rule, 0 without, JSON either way."""
    path = tmp_path / "recipe.toml"
    local = HEALTHY.replace("10.0.0.1:8192", "127.0.0.1:1").replace("--port 8192", "--port 1")
    for name, port in (("10.0.0.2", 8100), ("10.0.0.3", 8200)):
        local = local.replace(f"http://{name}:{port}", f"http://127.0.0.1:{port - 8090}")
        local = local.replace(f"--port {port}", f"--port {port - 8090}")
    path.write_text(local)
    assert main(["doctor", "--recipe", str(path), "--tpot", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fail"] == 0 and len(document["checks"]) == sum(
        document[level] for level in ("fail", "warn", "unknown", "pass")
    )
    path.write_text(local.replace('"kv_role": "kv_consumer"', '"kv_role": "kv_producer"'))
    assert main(["doctor", "--recipe", str(path)]) == 1
    printed = capsys.readouterr()
    assert "kv-role" in printed.out and "kv-role" in printed.err


def test_the_rate_that_slots_carry_is_said_with_what_it_is_chosen_by(tmp_path: Path) -> None:
    (asked,) = (
        c for c in checks_of(edited((("rates = [1, 4]", "rates = [1, 8]"),)), tmp_path) if c.rule == "slots-demand"
    )
    assert "Stay below 6 req/s" in asked.fix and "above 10.6" in asked.fix
    assert "so that the mean demand fits" in asked.fix and "for a p99 wait" in asked.fix


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    """The healthy recipe has slots and no TPOT; no recipe tells the KV pool."""
    without_slots = edited((("max_num_seqs = 8\n", ""), (DECODE, "\n")))
    told = {check.rule: f"{check.evidence}. {check.fix}" for check in checks_of(HEALTHY, tmp_path, None)}
    assert told["lease"] == "the wait for decode cannot be told: decode's TPOT is not known. Give --tpot MS."
    assert told["kv-pool"].startswith("its KV pool is not known. Its metrics page")
    told = {check.rule: f"{check.evidence}. {check.fix}" for check in checks_of(without_slots, tmp_path, None)}
    assert "decode's slots and TPOT are not known. Give --max-num-seqs. Give --tpot MS." in told["lease"]
    assert told["kv-pool"].startswith("its KV pool and slots are not known.")
    assert told["kv-pool"].endswith("Give --max-num-seqs.")


def test_every_rule_says_what_it_is_about() -> None:
    assert all(rule.__doc__ for rule in RULES.values())


def test_nothing_to_look_at_is_not_a_pass() -> None:
    """Servers that show no configuration: what rests on it is unknown."""
    from pdbench.deployment import build

    case = on_paper(build("t", [("proxy", "h:1"), ("prefill", "h:2"), ("decode", "h:3")]), {}, {})
    checks = judged(case)
    levels = {check.rule: check.level for check in checks}
    planned = {check.rule for check in judged(replace(case, sweep={"rates": [4]}))}
    assert not {"context", "slots-demand", "proxy-timeout", "example-proxy", "backends", "served-model"} & planned
    assert {levels[rule] for rule in ("connector", "kv-role", "side-channel-port", "mixed-modes")} == {"unknown"}
