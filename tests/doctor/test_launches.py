"""Launch commands as deployments have them: what they say is read, and of what they do not say no rule speaks."""

# ruff: noqa: E501  (a command line is easier to read on one line)

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pdbench.probe.doctor.examine import judged, launches_of, on_paper
from pdbench.probe.doctor.finding import Check
from pdbench.probe.doctor.launch import launch_of
from pdbench.recipe import TargetFlags, chosen, read_recipe

ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
# What says something of every pair of servers that is wholly known.
OF_EVERY_PAIR = {
    "launch-port", "mixed-modes", "connector", "engine-id", "kv-role", "unknown-keys", "bidirectional",
    "side-channel-port", "side-channel-host", "served-model", "backends", "handshake-check", "failure-policy",
    "dead-settings", "statistics-off",
}  # fmt: skip


def transfer(role: str, connector: str = "NixlConnector") -> str:
    return json.dumps({"kv_connector": connector, "kv_role": ROLE[role]})


def plain(role: str, port: int, connector: str = "NixlConnector") -> str:
    return f"vllm serve m --port {port} --max-num-seqs 8 --kv-transfer-config '{transfer(role, connector)}'"


def judge(
    folder: Path,
    launches: Mapping[str, str],
    hosts: tuple[str, str] = ("10.0.0.2", "10.0.0.3"),
    env: Mapping[str, str] | None = None,
) -> dict[str, Check]:
    """The worst check of each rule for a pair on these hosts; prefill's url is on port 8100, decode's on 8200."""
    text = 'mode = "pull"\nmodel = "m"\n'
    for (role, launch), host, port in zip(launches.items(), hosts, (8100, 8200), strict=True):
        text += f'[[server]]\nrole = "{role}"\nurl = "http://{host}:{port}"\nlaunch = {json.dumps(launch)}\n'
        if env:
            text += "env = { " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items()) + " }\n"
    path = folder / "recipe.toml"
    path.write_text(text)
    recipe = read_recipe(path)
    deployment = chosen(TargetFlags(recipe=path), recipe)[0]
    case = on_paper(deployment, launches_of(recipe.document["server"], folder), {})
    return {check.rule: check for check in reversed(judged(case))}


def levels(checks: Mapping[str, Check]) -> dict[str, str]:
    return {rule: check.level for rule, check in checks.items()}


SIDE = "VLLM_NIXL_SIDE_CHANNEL_PORT"
HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"


def scripted(role: str, port: int, side: int) -> str:
    return f"""#!/bin/bash
set -euo pipefail
source .venv/bin/activate
export MODEL=m
export PORT={port}   # the API
export {SIDE}={side}
KV='{transfer(role)}'
vllm serve $MODEL \\
  --port "${{PORT}}" \\
  --max-num-seqs 8 \\
  --kv-transfer-config "$KV" > {role}.log 2>&1 &
wait
"""


def in_arrays(role: str, port: int, side: int) -> str:
    return f"""cd /opt/vllm || exit 1
ARGS=(--port {port} --max-num-seqs 8)
ARGS=("${{ARGS[@]}}"
  --kv-transfer-config)
ARGS+=('{transfer(role)}')
{SIDE}={side} vllm serve m "${{ARGS[@]}}" 2>&1 | tee {role}.log
"""


def in_bash(role: str, port: int, side: int) -> str:
    inner = f"export {SIDE}={side} && exec {plain(role, port)}"
    return "nohup bash -lc " + json.dumps(inner) + " &"


def in_a_unit(role: str, port: int, side: int) -> str:
    return f"""[Unit]
Description=vLLM {role}

[Service]
Environment="{SIDE}={side}" "NAME=a b"
ExecStart=/opt/vllm/bin/vllm serve m --port {port} \\
    --max-num-seqs 8 \\
    --kv-transfer-config '{transfer(role)}'
Restart=always
"""


def by_module(role: str, port: int, side: int) -> str:
    rest = plain(role, port).removeprefix("vllm serve m")
    return f"env {SIDE}={side} python3 -m vllm.entrypoints.openai.api_server --model=m {rest}"


def in_docker(role: str, port: int, side: int) -> str:
    rest = plain(role, port).removeprefix("vllm serve m")
    return f"sudo -E docker run --gpus all --network host -e {SIDE}={side} vllm/vllm-openai:v0.32.0 --model m {rest}"


WRITTEN = [
    scripted, in_arrays, in_bash, in_a_unit, by_module, in_docker,
    lambda role, port, side: f"{SIDE}={side} numactl --cpunodebind=0 -m 0 {plain(role, port)}",
    lambda role, port, side: f"srun -N1 -w node1 {SIDE}={side} {plain(role, port)}",
    lambda role, port, side: f"{SIDE}={side} uv run --frozen {plain(role, port)}",
    lambda role, port, side: f"numactl -N 1 env {SIDE}={side} {plain(role, port)}",
    lambda role, port, side: "ssh -p 22 node " + json.dumps(f"{SIDE}={side} {plain(role, port)}"),
    lambda role, port, side: f"{SIDE}=${{MY_PORT:-{side}}} {plain(role, port)}",
    lambda role, port, side: f"vllm serve m\n--port {port}\n  --kv-transfer-config\n  '{transfer(role)}' --x {side}".replace(
        "vllm", f"{SIDE}={side}\nvllm", 1
    ),
]  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
def test_a_pair_is_read_however_it_is_written(written: Any, tmp_path: Path) -> None:
    """Two servers on one host: with a side channel each every rule passes, with one for both that is found."""
    hosts = ("127.0.0.1", "127.0.0.1")
    apart = judge(tmp_path, {"prefill": written("prefill", 8100, 5600), "decode": written("decode", 8200, 5700)}, hosts)
    assert {rule for rule, level in levels(apart).items() if level == "pass"} >= OF_EVERY_PAIR
    same = judge(tmp_path, {"prefill": written("prefill", 8100, 5601), "decode": written("decode", 8200, 5601)}, hosts)
    assert same["side-channel-port"].level == "fail" and ":5601" in same["side-channel-port"].evidence
    assert {rule for rule, level in levels(same).items() if level == "fail"} == {"side-channel-port"}


@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_wrong_inside_is_found(written: Any, tmp_path: Path) -> None:
    """Push against pull, and decode on another port than its url says."""
    push = written("prefill", 8100, 5600).replace("NixlConnector", "NixlPushConnector")
    checks = judge(tmp_path, {"prefill": push, "decode": written("decode", 8201, 5700)}, ("127.0.0.1", "127.0.0.1"))
    assert {rule for rule, level in levels(checks).items() if level == "fail"} == {"mixed-modes", "launch-port"}


UNREADABLE = [
    "./start_prefill.sh", "nohup bash start.sh 8100 &", "docker compose up prefill", "helm install x ./chart",
    "services:\n  prefill:\n    image: vllm/vllm-openai\n    command: --port 8100\n",
    "for i in 1 2; do vllm serve m --port 810$i; done", "vllm serve $1 \"$@\"", "vllm serve --config p.yaml",
    "vllm serve m --port 8100 $EXTRA_ARGS", "vllm serve m --port 8100 --kv-transfer-config \"$KV\"",
    "vllm serve m --port 8100 & vllm serve n --port 8200", "cat <<EOF\nvllm serve\nEOF",
    "python -m sglang.launch_server --model m --disaggregation-mode prefill --port 8100",
    "vllm serve m --kv-transfer-config '{\"kv_connector\": \"NixlConnector'", "vllm serve 'm",
]  # fmt: skip


@pytest.mark.parametrize("launch", UNREADABLE)
@pytest.mark.parametrize("both", [False, True])
def test_no_rule_speaks_of_what_cannot_be_read(launch: str, both: bool, tmp_path: Path) -> None:
    """Neither passed nor failed, also where the other side can be read."""
    other = launch.replace("8100", "8200") if both else plain("decode", 8200)
    found = levels(judge(tmp_path, {"prefill": launch, "decode": other}))
    judged_anyway = {"served-model", "launch-port", "dead-settings", "statistics-off", "side-channel-host"}
    assert {found[rule] for rule in OF_EVERY_PAIR - judged_anyway} == {"unknown"}
    assert {found.get(rule, "unknown") for rule in judged_anyway} <= {"unknown", "pass"}
    assert {rule for rule, level in found.items() if level == "fail"} <= {"launch-unreadable"}


@pytest.mark.parametrize(
    ("form", "reads"),
    [
        ("args: {json}", True),
        ("{json}", True),
        ("command: [vllm, serve, m]\nargs: {json}", True),
        ("command:\n- vllm\n- serve\n- m\nargs:\n{block}", True),
        ("{block}", True),
        ("command: [\"/bin/sh\", '-c']\nargs:\n  - |\n    vllm serve m --port 8100 \\\n      --kv-transfer-config '{transfer}'\n", True),
        ("- name: vllm\n  args: {json}", False),
        ("args: {json}\nenv:\n- name: A\n  value: b", False),
        ("args:\n- name: x\n  value: y", False),
    ],
)  # fmt: skip
def test_lists_of_a_pod(form: str, reads: bool) -> None:
    words = ["--port", "8100", "--kv-transfer-config", transfer("prefill")]
    block = "\n".join(f"  - {word if word.startswith('--') else json.dumps(word)}" for word in words)
    launch = launch_of(
        form.replace("{json}", json.dumps(words)).replace("{block}", block).replace("{transfer}", words[3]), {}
    )
    assert (launch.transfer == json.loads(words[3]) and launch.flags["port"] == "8100") if reads else launch.unread


def test_of_a_pod_nothing_is_made_up(tmp_path: Path) -> None:
    """Its Service may map ports, its variables stand elsewhere: unknown. What the list says is judged."""
    lists = {
        role: json.dumps(["vllm", "serve", "m", "--port", "8000", "--kv-transfer-config", transfer(role)])
        for role in ROLE
    }
    found = levels(judge(tmp_path, lists))
    assert {found[rule] for rule in ("launch-port", "side-channel-port", "side-channel-host")} == {"unknown"}
    assert "fail" not in found.values() and found["kv-role"] == found["connector"] == "pass"
    found = levels(judge(tmp_path, lists, ("127.0.0.1", "127.0.0.1"), {HOST: "$(POD_IP)"}))
    assert found["side-channel-port"] == found["side-channel-host"] == "pass"
    swapped = {"prefill": lists["decode"], "decode": lists["prefill"]}
    assert levels(judge(tmp_path, swapped))["kv-role"] == "fail"


@pytest.mark.parametrize(
    ("env", "hosts", "level"),
    [
        ({HOST: "$(POD_IP)"}, ("10.0.0.2", "10.0.0.3"), "pass"),
        ({HOST: "${POD_IP}"}, ("10.0.0.2", "10.0.0.3"), "pass"),
        ({HOST: "$HOSTNAME"}, ("10.0.0.2", "10.0.0.3"), "pass"),
        ({HOST: "$(hostname -i)"}, ("10.0.0.2", "10.0.0.3"), "pass"),
        ({HOST: "$(hostname -i)"}, ("10.0.0.2", "10.0.0.2"), "unknown"),
        ({HOST: "$ROUTABLE"}, ("10.0.0.2", "10.0.0.3"), "unknown"),
        ({HOST: "{{ .Values.host }}"}, ("10.0.0.2", "10.0.0.3"), "unknown"),
        ({HOST: "0.0.0.0"}, ("10.0.0.2", "10.0.0.3"), "pass"),
        ({HOST: "0.0.0.0"}, ("10.0.0.2", "10.0.0.2"), "fail"),
        ({HOST: "10.0.0.9"}, ("10.0.0.2", "10.0.0.3"), "fail"),
        ({SIDE: "${SIDE_PORT:-5600}"}, ("10.0.0.2", "10.0.0.3"), "pass"),
        ({SIDE: "${SIDE_PORT:-5600}"}, ("10.0.0.2", "10.0.0.2"), "fail"),
        ({SIDE: "${SIDE_PORT}"}, ("10.0.0.2", "10.0.0.2"), "unknown"),
        ({SIDE: "$((5600 + RANK))"}, ("10.0.0.2", "10.0.0.2"), "unknown"),
        ({SIDE: "${SIDE_PORT}", "SIDE_PORT": "5601"}, ("10.0.0.2", "10.0.0.2"), "fail"),
        ({SIDE: "fiftysix"}, ("10.0.0.2", "10.0.0.3"), "fail"),
    ],
)  # fmt: skip
def test_variables_that_only_the_host_knows(
    env: dict[str, str], hosts: tuple[str, str], level: str, tmp_path: Path
) -> None:
    launches = {"prefill": plain("prefill", 8100), "decode": plain("decode", 8200)}
    assert judge(tmp_path, launches, hosts, env)["side-channel-port"].level == level


@pytest.mark.parametrize(
    ("file", "level"),
    [
        (f"# ours\n{SIDE}=5700\n", "pass"),
        (f"{SIDE}=5600\n", "fail"),
        ("OTHER=1\n", "fail"),
        (None, "unknown"),
    ],
)
def test_an_env_file_is_read_where_it_is_there(file: str | None, level: str, tmp_path: Path) -> None:
    if file is not None:
        (tmp_path / "d.env").write_text(file)
    container = f"docker run --network host --env-file d.env vllm/vllm-openai:v0.32.0 --model m --port 8200 --kv-transfer-config '{transfer('decode')}'"
    checks = judge(tmp_path, {"prefill": plain("prefill", 8100), "decode": container}, ("127.0.0.1", "127.0.0.1"))
    assert checks["side-channel-port"].level == level
    assert "fail" not in {one for rule, one in levels(checks).items() if rule != "side-channel-port"}


@pytest.mark.parametrize(("network", "ports", "hosts"), [("--network host", "fail", "pass"), ("", "pass", "fail")])
def test_a_container_with_its_own_network_is_a_machine(network: str, ports: str, hosts: str, tmp_path: Path) -> None:
    """Side channels on one port do not meet there, and nobody reaches another's localhost."""
    launches = {
        role: f"docker run {network} -p {port}:{port} image {plain(role, port)}"
        for role, port in (("prefill", 8100), ("decode", 8200))
    }
    found = levels(judge(tmp_path, launches, ("127.0.0.1", "127.0.0.1")))
    assert (found["side-channel-port"], found["side-channel-host"]) == (ports, hosts)


@pytest.mark.parametrize(
    "wrapper", ["srun --export=ALL,VLLM_NIXL_SIDE_CHANNEL_PORT=5700", "apptainer exec --env A=1 vllm.sif", "uv run --env-file .env"]
)  # fmt: skip
def test_variables_that_a_wrapper_gives_are_not_taken_for_defaults(wrapper: str, tmp_path: Path) -> None:
    launches = {"prefill": plain("prefill", 8100), "decode": f"{wrapper} {plain('decode', 8200)}"}
    found = levels(judge(tmp_path, launches, ("127.0.0.1", "127.0.0.1")))
    assert found["side-channel-port"] == "unknown" and "fail" not in found.values()


def test_a_script_that_starts_the_proxy_passes_no_rule_of_proxies(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for launch, passed in (
        ("./proxy.sh", set()),
        ("python $PROXY --port $PORT", {"example-proxy"}),
        ("python proxy.py --prefill http://10.0.0.2:8100", {"example-proxy", "proxy-routes"}),
    ):
        proxy = f"[[server]]\nrole = 'proxy'\nurl = 'http://10.0.0.1:8192'\nlaunch = '{launch}'\n"
        pair = "".join(
            f"[[server]]\nrole = '{r}'\nurl = 'http://10.0.0.2:{p}'\n" for r, p in zip(ROLE, (8100, 8200), strict=True)
        )
        path.write_text(f"{proxy}{pair}[sweep]\nrates = [1]\n")
        recipe = read_recipe(path)
        case = on_paper(
            chosen(TargetFlags(recipe=path), recipe)[0], launches_of(recipe.document["server"]), recipe.sweep
        )
        rules = {"example-proxy", "proxy-routes", "proxy-timeout", "push-together"}
        assert {check.rule for check in judged(case) if check.rule in rules and check.level == "pass"} == passed


def test_a_launch_may_be_a_list_of_words() -> None:
    assert launch_of(["vllm", "serve", "m", "--port", 8100], None).flags == {"port": "8100"}
