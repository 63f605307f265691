"""What was measured, in a few facts that stay with summary.json: they say what differs between two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SERVER_FACTS = ("engine", "version", "connector", "transfer_mode", "block_size", "num_kv_blocks", "prefix_caching")


def facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Revision, driver, client and each target's deployment from run.json; what is not known is absent."""
    host = document.get("host") or {}
    return {
        "revision": document.get("revision"),
        "driver": document.get("driver"),
        "client": host.get("platform"),
        "deployments": [_deployment(found) for found in document.get("deployments") or []],
    }


def _deployment(found: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: found.get(name) for name in ("target", "mode", "model", "engine", "link_gb_s")}
    return {**known, "servers": [_server(server) for server in found.get("servers") or []]}


def _server(server: Mapping[str, Any]) -> dict[str, Any]:
    known: Mapping[str, Any] = server.get("facts") or {}
    slots = server.get("max_num_seqs") or known.get("max_num_seqs")
    about = {name: known.get(name) for name in SERVER_FACTS}
    return {"name": server.get("name"), "role": server.get("role"), "max_num_seqs": slots, **about}


def flat(summary: Mapping[str, Any], target: str | None = None) -> dict[str, str]:
    """The facts as name and text, of one target or of all; `decode-0 version` and the like for servers."""
    named: dict[str, Any] = {
        "pdbench": summary.get("pdbench"),
        "git": summary.get("revision"),
        "driver": summary.get("driver"),
        "client": summary.get("client"),
    }
    deployments = summary.get("deployments") or []
    chosen = [d for d in deployments if target is None or d.get("target") == target]
    for deployment in chosen:
        front = f"{deployment.get('target')} " if len(chosen) > 1 else ""
        for name in ("mode", "model", "engine", "link_gb_s"):
            named[f"{front}{name}"] = deployment.get(name)
        for server in deployment.get("servers") or []:
            for name in ("version", "max_num_seqs", *SERVER_FACTS[2:]):
                named[f"{front}{server.get('name')} {name}"] = server.get(name)
    if not deployments:  # summaries of older versions say the engines only
        named |= dict(summary.get("versions") or {})
        link = summary.get("link")  # of a transfer
        named["link"] = link.get("name") if isinstance(link, Mapping) else None
    return {name: str(value) for name, value in named.items() if value is not None}
