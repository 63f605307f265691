"""What one server says of itself: its answers to a few GETs, read as `ServerFacts`.

Nothing here talks to a network. What a server doesn't say is `None`, never a guess; text from servers is cut and
cleaned before it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pdbench.deployment import Server, ServerFacts
from pdbench.probe.pages import Answer, clean
from pdbench.probe.scrape import BadPage, Row, scrape_of
from pdbench.probe.vocabulary import family_names, guess_engine, useful_looking

SIMULATED_SUFFIX = "+pdbench.testbed"
_SGLANG_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
MODES_OF_CONNECTORS = {"NixlPushConnector": "push", "NixlConnector": "pull", "NixlPullConnector": "pull"}


@dataclass(frozen=True, slots=True)
class Model:
    """A name under which a server serves. Aliases of one model share `root`; a LoRA adapter has a parent."""

    id: str
    root: str | None
    max_model_len: int | None


def json_of(answer: Answer | None) -> Any:
    """The answer's JSON, or None when there is none."""
    if answer is None or not answer.ok:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def models_of(answer: Answer | None) -> tuple[Model, ...]:
    """The models of a /v1/models answer."""
    document = json_of(answer)
    entries = document.get("data") if isinstance(document, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else []:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name.isprintable():
            continue
        length = entry.get("max_model_len", entry.get("context_window"))  # Dynamo says context_window, 0 when unknown
        root = entry.get("root")
        found.append(Model(name, root if isinstance(root, str) else None, positive(length)))
    return tuple(found)


def positive(value: Any) -> int | None:
    """A positive whole number, also from a label's text; else None."""
    try:
        number = int(value) if not isinstance(value, bool) else 0
    except (TypeError, ValueError):
        return None
    return number if number > 0 else None


def learn(server: Server, answers: Mapping[str, Answer], engine: str | None) -> ServerFacts:
    """The facts of one server from its answers by path."""
    models = models_of(answers.get("/v1/models"))
    version = _version(json_of(answers.get("/version")))
    names, rows, notes = _page(server, answers.get("metrics"), engine)
    info = _dict(json_of(answers.get("/server_info")))
    config = _config(info)
    version = version or (_version(info) if _is_sglang(info) else None)  # it has no /version
    transfer = _dict(config.get("kv_transfer_config"))
    told = _told_by_page(rows)
    lengths = [model.max_model_len for model in models if model.max_model_len]
    connector, mode = connector_of(transfer)
    if connector is None and any("nixl_" in name for name in names):
        connector = "nixl"
    role = transfer.get("kv_role", _SGLANG_ROLES.get(str(info.get("disaggregation_mode"))))
    backend = info.get("disaggregation_transfer_backend")
    if connector is None and role is not None and isinstance(backend, str):
        connector = clean(backend, 40)
    if role is None and any("num_requests_kv_fetch_by_stage" in name for name in names) and server.role != "prefill":
        role = "kv_consumer"  # only consumers show the stages of a fetch (so does the deprecated kv_both)
    return ServerFacts(
        reachable=any(answer.answered for answer in answers.values()),
        engine=engine or guess_engine(names) or ("vllm" if config else "sglang" if _is_sglang(info) else None),
        version=version,
        simulated=bool(version and version.endswith(SIMULATED_SUFFIX)),
        models=tuple(model.id for model in models),
        max_model_len=min(lengths) if lengths else positive(_dict(config.get("model_config")).get("max_model_len")),
        has_metrics=bool(names),
        block_size=told.get("block_size") or positive(_dict(config.get("cache_config")).get("block_size")),
        num_kv_blocks=told.get("num_gpu_blocks") or positive(_dict(config.get("cache_config")).get("num_gpu_blocks")),
        prefix_caching=told.get("prefix_caching", _dict(config.get("cache_config")).get("enable_prefix_caching")),
        connector=connector,
        kv_role=clean(role, 40) if isinstance(role, str) else None,
        transfer_mode=mode,
        dp_ranks=told.get("dp_ranks"),
        kv_ranks=_kv_ranks_of(info),
        max_num_seqs=told.get("max_num_seqs") or slots_of(_dict(config.get("scheduler_config"))) or _running_of(info),
        bootstrap_port=positive(info.get("disaggregation_bootstrap_port")),
        notes=tuple(notes),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_sglang(info: Mapping[str, Any]) -> bool:
    return "disaggregation_mode" in info


def _version(document: Any) -> str | None:
    version = document.get("version") if isinstance(document, dict) else None
    return clean(version, 80) if isinstance(version, str) and version else None


def _config(document: Any) -> dict[str, Any]:
    """vllm_config of /server_info?config_format=json; without that query it is one long text, which is not read."""
    return _dict(_dict(document).get("vllm_config"))


def slots_of(scheduler: Mapping[str, Any]) -> int | None:
    """The limit on running requests: max_num_active_seqs may lower max_num_seqs."""
    limits = [positive(scheduler.get(name)) for name in ("max_num_seqs", "max_num_active_seqs")]
    return min((limit for limit in limits if limit is not None), default=None)


def _running_of(info: Mapping[str, Any]) -> int | None:
    """SGLang's limit on running requests, of each data-parallel rank."""
    states = info.get("internal_states")
    first = _dict(states[0]) if isinstance(states, list) and states else {}
    return positive(first.get("effective_max_running_requests_per_dp"))


def _kv_ranks_of(info: Mapping[str, Any]) -> int | None:
    """SGLang's tensor-parallel ranks for one request: data- and context-parallel attention take their part of them."""
    ranks = positive(info.get("tp_size"))
    apart = (info.get("dp_size") if info.get("enable_dp_attention") else 1, info.get("attn_cp_size", 1))
    shared = [positive(size) for size in apart]
    return None if ranks is None or None in shared else max(1, ranks // prod(size or 1 for size in shared))


def connector_of(transfer: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Connector and transfer mode; of a MultiConnector the first child that has a mode."""
    name = transfer.get("kv_connector")
    if not isinstance(name, str):
        return None, None
    children = _dict(transfer.get("kv_connector_extra_config")).get("connectors")
    for child in children if name == "MultiConnector" and isinstance(children, list) else []:
        inner, mode = connector_of(_dict(child))
        if mode is not None:
            return f"{name}/{inner}", mode
    return clean(name, 60), MODES_OF_CONNECTORS.get(name)


def _page(server: Server, answer: Answer | None, engine: str | None) -> tuple[set[str], tuple[Row, ...], list[str]]:
    """Names and rows of the metrics page, and what is to be said of it. A proxy need not have one."""
    if answer is None:
        return set(), (), []
    trouble = answer.failure
    if trouble is None and answer.status != 200:
        trouble = "refuses the credentials" if answer.status in (401, 403) else f"answers HTTP {answer.status}"
    elif trouble is None and answer.html:
        trouble = "is HTML"
    names: set[str] = set()
    rows: tuple[Row, ...] = ()
    if trouble is None:
        names = family_names(answer.body)
        guess = engine or guess_engine(names)
        try:
            rows = scrape_of(guess)(answer.body, edge=True).rows
        except BadPage as bad:
            trouble = str(bad)
        if guess is None and server.role != "proxy":
            useful = clean(", ".join(useful_looking(names)), 300)
            trouble = f"is of no engine that pdbench knows (series that look useful: {useful or 'none'})"
    if trouble is None or (server.role == "proxy" and not names):
        return names, rows, []
    return names, rows, [f"metrics page {trouble}: this server's side is not measured"]


def moved_kv(answer: Answer | None, engine: str | None) -> bool:
    """Whether this server's NIXL has moved anything so far: the decode server's has when decode pulls."""
    if answer is None or not answer.ok or answer.html:
        return False
    try:
        rows = scrape_of(engine)(answer.body).rows
    except BadPage:
        return False
    return any(canonical == "nixl_xfer_s" and kind == "count" and value > 0 for _, canonical, kind, _, _, value in rows)


def _told_by_page(rows: Sequence[Row]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    ranks = {engine for _, _, _, engine, _, _ in rows if engine}
    if ranks:
        told["dp_ranks"] = len(ranks)
    for _, canonical, _, _, labels, value in rows:
        if canonical == "cache_config":
            config = json.loads(labels)
            told.setdefault("block_size", positive(config.get("block_size")))
            told.setdefault("num_gpu_blocks", positive(config.get("num_gpu_blocks")))
            if config.get("enable_prefix_caching") in ("True", "False"):
                told.setdefault("prefix_caching", config["enable_prefix_caching"] == "True")
        elif canonical in ("block_size", "max_num_seqs", "num_kv_blocks"):
            told.setdefault(canonical.replace("num_kv", "num_gpu"), positive(value))
    return told
