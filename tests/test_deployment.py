"""What is measured, where it comes from, and that secrets stay out of everything that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdbench.deployment import DEFAULT_TARGET, Credentials, flags_for, from_document
from pdbench.errors import UsageError
from pdbench.recipe import TargetFlags, chosen, read_recipe

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


def test_no_flags_mean_the_guides_default_ports() -> None:
    (deployment,) = chosen(TargetFlags(), None)
    assert {s.role: s.url for s in deployment.servers} == {
        "proxy": "http://127.0.0.1:8192",
        "prefill": "http://127.0.0.1:8100",
        "decode": "http://127.0.0.1:8200",
    }


def test_a_proxy_alone_assumes_no_other_role() -> None:
    (deployment,) = chosen(TargetFlags(proxy=["localhost:9000/v1/"]), None)
    assert [(s.name, s.url, s.metrics_url) for s in deployment.servers] == [
        ("proxy-0", "http://localhost:9000", "http://localhost:9000/metrics")
    ]
    assert deployment.decode_slots is None


def test_flags_replace_the_servers_of_the_file_and_override_its_facts(tmp_path: Path) -> None:
    file = tmp_path / "pdbench.toml"
    file.write_text(
        'name = "x"\nengine = "vllm"\nmax_num_seqs = 8\nlink_gb_s = 50\n'
        '[[server]]\nrole = "proxy"\nurl = "http://a:1"\n'
        '[[server]]\nrole = "decode"\nurl = "http://a:2"\nmax_num_seqs = 4\n'
    )
    recipe = read_recipe(file)
    (from_file,) = chosen(TargetFlags(), recipe)
    assert (from_file.decode_slots, from_file.link_gb_s, len(from_file.servers)) == (4, 50, 2)
    (mixed,) = chosen(TargetFlags(server=["http://b:1"], link_gb_s=25.0), recipe)
    assert ([s.role for s in mixed.servers], mixed.decode_slots, mixed.link_gb_s) == (["colocated"], 8, 25.0)
    (overridden,) = chosen(TargetFlags(max_num_seqs=16), recipe)
    assert overridden.decode_slots == 16


def test_flags_beside_a_recipe_replace_the_servers_of_their_role_only(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    servers = [("proxy", "http://a:1"), ("prefill", "http://a:2"), ("decode", "http://a:3")]
    file.write_text("".join(f'[[server]]\nrole = "{role}"\nurl = "{url}"\n' for role, url in servers))
    (deployment,) = chosen(TargetFlags(proxy=["http://b:1"], recipe=file), read_recipe(file))
    assert sorted(s.url for s in deployment.servers) == ["http://a:2", "http://a:3", "http://b:1"]


def test_slots_of_all_decoders_add_up_and_one_unknown_makes_the_sum_unknown() -> None:
    (two,) = chosen(TargetFlags(proxy=["a"], decode=["b,c"], max_num_seqs=8), None)
    assert two.decode_slots == 16
    assert chosen(TargetFlags(proxy=["a"], decode=["b,c"]), None)[0].decode_slots is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (TargetFlags(proxy=["ftp://x"]), "http://HOST:PORT"),
        (TargetFlags(proxy=["http://h:99999"]), "port"),
        (TargetFlags(proxy=["http://h:1?key=abc"]), "query"),
        (TargetFlags(proxy=["a", "b"]), "one proxy"),
        (TargetFlags(proxy=["a"], server=["b"]), "two deployments"),
        (TargetFlags(decode=["b", "b"]), "twice"),
        (TargetFlags(target=["x"]), "NAME="),
        (TargetFlags(api_key_env="SURELY_NOT_SET_ANYWHERE"), "not set"),
        (TargetFlags(api_key_file=Path("/nowhere/key")), "--api-key-file"),
        (TargetFlags(mode="shove"), "--mode"),
    ],
)
def test_a_wrong_target_is_one_sentence(flags: TargetFlags, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen(flags, None)


def test_a_deployment_without_a_door_says_which_flag_is_missing() -> None:
    (deployment,) = chosen(TargetFlags(decode=["b"]), None)
    with pytest.raises(UsageError, match="--proxy"):
        _ = deployment.entry


def test_secrets_are_sent_but_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    flags = TargetFlags(proxy=["http://ann:p%40ss@host:1"], decode=["http://host:2"], api_key_env="MY_KEY")
    (deployment,) = chosen(flags, None)
    assert deployment.credentials.headers("http://host:2/metrics") == {"Authorization": "Bearer sk-very-secret"}
    assert deployment.credentials.headers("http://host:1/v1/completions")["Authorization"].startswith("Basic ")
    shown = json.dumps(deployment.document()) + repr(deployment) + str(deployment.credentials)
    for secret in ("sk-very-secret", "p@ss", "p%40ss", "ann"):
        assert secret not in shown
    assert deployment.credentials.redact("you sent sk-very-secret and p@ss") == "you sent *** and ***"
    assert Credentials().redact("nothing") == "nothing"
    key_file = tmp_path / "key"
    key_file.write_text("from-a-file\n")
    (again,) = chosen(TargetFlags(proxy=["h"], api_key_file=key_file), None)
    assert again.credentials.api_key == "from-a-file"


def test_a_wrong_url_with_a_password_does_not_print_it() -> None:
    with pytest.raises(UsageError) as caught:
        chosen(TargetFlags(proxy=["ftp://ann:hunter2@host"]), None)
    assert "hunter2" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    "flags", [{"decode": ["d"]}, {"metrics_url": ["decode-0=http://d"]}, {"decode_log": ["d.log"]}]
)
def test_named_targets_take_their_servers_from_recipes_and_say_so(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(TargetFlags(target=["a=http://a"], **flags), None)
    assert "recipe file" in caught.value.hint


def test_what_adds_a_server_can_be_typed() -> None:
    """The flags of a run without a name, a recipe for a target that has one."""
    assert flags_for(["decode", "prefill"], DEFAULT_TARGET) == "--decode URL --prefill URL"
    assert "--target a=RECIPE.toml" in flags_for(["decode"], "a") and "--decode" not in flags_for(["decode"], "a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = 3", "name"),
        ("colour = 'red'", "unknown key colour"),
        ("[[server]]\nrole = 'router'\nurl = 'http://a'", "role"),
        ("[[server]]\nrole = 'proxy'\nurl = 'http://a'\nport = 3", "server.port"),
        ("max_num_seqs = 'eight'", "max_num_seqs"),
        ("mode = 'shove'", "mode"),
        ("x = ", "not TOML"),
    ],
)
def test_a_wrong_file_names_the_key(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "pdbench.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_recipe(file)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_reads_and_has_a_door(path: Path) -> None:
    recipe = read_recipe(path)
    (deployment,) = chosen(TargetFlags(), recipe)
    assert deployment.entry.role in ("proxy", "colocated")
    assert from_document(json.loads(json.dumps(deployment.document()))).document() == deployment.document()
