"""How a run was measured, for report.html: command, plan, seeds, clock, client health, servers and their facts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.tables import definitions
from pdbench.report.wording import NOT_MEASURED, Summary, clean, number, short, targets

_FACTS = {
    "engine": "engine",
    "version": "version",
    "models": "models",
    "max_model_len": "max model length",
    "connector": "connector",
    "kv_role": "KV role",
    "transfer_mode": "transfer",
    "block_size": "block size",
    "num_kv_blocks": "KV blocks",
    "prefix_caching": "prefix caching",
    "dp_ranks": "DP ranks",
}
_CLIENT = {
    "lateness_p99_ms": "send lateness p99, ms", "lateness_max_ms": "max, ms", "loop_lag_p99_ms": "loop lag p99, ms",
    "loop_lag_max_ms": "max, ms", "cpu_share": "CPU of one core", "recorder_backlog_max": "recorder backlog",
    "achieved_concurrency": "streams held", "kernel_to_user_p99_ms": "reads after the kernel p99, ms",
    "events_per_read": "token events a read", "shared_reads_share": "reads shared",
    "kernel_stamps_share": "kernel's stamps", "connect_p99_ms": "connecting p99, ms",
    "connections_opened": "connections opened", "connections_reused": "used again", "resets_retried": "resets retried",
    "offset_steps": "clock steps",
}  # fmt: skip
UNKNOWN = "not known"
_SHARES = {"cpu_share": 0, "kernel_stamps_share": 0, "shared_reads_share": 2}  # and their decimals


def measured(summary: Summary, document: Mapping[str, Any]) -> Markup:
    """Everything that somebody needs to repeat the run or to doubt it."""
    plan: Mapping[str, Any] = document.get("plan") or summary.get("plan") or {}
    parts: list[Child] = [definitions(_facts(summary, document, plan))]
    for deployment in document.get("deployments") or []:
        parts.append(_servers(deployment) if deployment.get("servers") else None)
    if runs := document.get("cell_runs") or []:
        parts.append(_cell_runs(runs, _targets_of(summary, plan)))
    if notes := dict.fromkeys(clean(note) for note in document.get("notes") or []):
        parts.append(tag("h3", "Notes"))
        parts.append(tag("ul", [tag("li", note) for note in notes]))
    return tag("div", parts)


def _facts(summary: Summary, document: Mapping[str, Any], plan: Mapping[str, Any]) -> list[tuple[str, object]]:
    host, clock = document.get("host") or {}, document.get("clock") or {}
    command = document.get("command")
    versions = [f"{name} {version}" for name, version in (summary.get("versions") or {}).items()]
    limits = [f"{plan['num_prompts']:,} prompts a cell"] if plan.get("num_prompts") else []
    limits += [f"{short(float(plan['duration_s']))} s a cell"] if plan.get("duration_s") else []
    arrivals = plan.get("arrivals")
    if arrivals == "gamma":
        arrivals = f"gamma, burstiness {plan.get('burstiness')}"
    slos = ", ".join(f"{name} {short(float(limit))} ms" for name, limit in (plan.get("goodput_ms") or {}).items())
    return [
        ("command", tag("code", command) if command else None),
        ("measured", moment(document.get("created_unix_s") or summary.get("created_unix_s"))),
        ("pdbench", document.get("pdbench") or summary.get("pdbench")),
        ("versions", ", ".join(versions)),
        ("client", ", ".join(f"{value} CPUs" if key == "cpus" else f"{key} {value}" for key, value in host.items())),
        ("clock", clock.get("source")),
        ("seed", plan.get("seed")),
        ("arrivals", arrivals),
        ("limits", ", ".join(limits)),
        ("repeats", plan.get("repeats")),
        ("endpoint", plan.get("endpoint")),
        ("ends", None if "ignore_eos" not in plan else "ignore_eos" if plan["ignore_eos"] else "real"),
        ("SLOs of goodput", slos),
        ("request deadline", f"{short(float(plan['timeout_s']))} s" if plan.get("timeout_s") else None),
        ("scrape interval", f"{short(float(plan['sample_interval_s']))} s" if plan.get("sample_interval_s") else None),
    ]


def moment(unix_s: object) -> str | None:
    if not isinstance(unix_s, int | float):
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _servers(deployment: Mapping[str, Any]) -> Markup:
    servers: Sequence[Mapping[str, Any]] = deployment.get("servers") or []
    told = {name: head for name, head in _FACTS.items() if any((s.get("facts") or {}).get(name) for s in servers)}
    same = {name: value for name in told if (value := _of_all(servers, name)) is not None} if len(servers) > 1 else {}
    facts = {name: head for name, head in told.items() if name not in same}
    rows = []
    for server in servers:
        known: Mapping[str, Any] = server.get("facts") or {}
        slots = server.get("max_num_seqs") or known.get("max_num_seqs")
        page = "scraped" if known.get("has_metrics") else "none" if known else None
        cells: list[Child] = [
            server.get("name"),
            server.get("url"),
            page,
            slots,
            *(_said(known.get(name)) for name in facts),
        ]
        rows.append([NOT_MEASURED if (said := _said(cell)) == UNKNOWN else said for cell in cells])
    about = [deployment.get("mode"), deployment.get("model"), deployment.get("source")]
    link = deployment.get("link_gb_s")
    about.append(f"link {short(float(link))} GB/s" if link else None)
    name = " \u00b7 ".join(
        [clean(deployment.get("target", "target"), 60), *(clean(word, 120) for word in about if word)]
    )
    heads = ["server", "URL", "metrics page", "slots", *facts.values()]
    alike = "; ".join(f"{told[name]} {value}" for name, value in same.items())
    notes = [
        f"{clean(s.get('name', '?'))}: {clean(note)}"
        for s in servers
        for note in (s.get("facts") or {}).get("notes", [])
    ]
    return tag(
        "div",
        table(heads, rows, caption=f"Servers of {name}"),
        tag("p", f"The same on each that tells it: {alike}.", class_="note") if alike else None,
        tag("ul", [tag("li", note) for note in notes]) if notes else None,
    )


def _of_all(servers: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """A fact that all servers that tell it have in common."""
    known = {_said((server.get("facts") or {}).get(name)) for server in servers} - {UNKNOWN}
    return known.pop() if len(known) == 1 else None


def _said(value: object) -> str:
    if value is None or value in ((), []):
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(clean(item, 80) for item in value)
    return f"{value:,}" if isinstance(value, int) else clean(value, 200)


def _targets_of(summary: Summary, plan: Mapping[str, Any]) -> dict[Any, str]:
    """The target of each cell, where the run has several."""
    cells = [*(summary.get("cells") or []), *(plan.get("cells") or [])]
    return {cell.get("cell"): clean(cell.get("target", ""), 60) for cell in cells} if len(targets(summary)) > 1 else {}


def _cell_runs(runs: Sequence[Mapping[str, Any]], target_of: Mapping[Any, str]) -> list[Markup]:
    """Two tables, each of which fits a page: what was sent, and how the client was meanwhile."""
    health = {
        name: head for name, head in _CLIENT.items() if any((r.get("client") or {}).get(name) is not None for r in runs)
    }
    sent, client = [], []
    for entry in runs:
        name = " ".join(filter(None, [f"#{entry.get('cell', '?')}", target_of.get(entry.get("cell"))]))
        span = f"{number(entry.get('start_s'))} to {number(entry.get('end_s') or entry.get('send_end_s'))}"
        facts = [entry.get("repeat"), entry.get("state"), span, entry.get("planned"), entry.get("sent")]
        # A seed is copied into a command line: no thousands separator.
        seed = tag("td", tag("code", entry.get("seed", UNKNOWN)))
        sent.append([name, *(_said(fact) for fact in facts), seed])
        values = [_health(entry.get("client") or {}, figure) for figure in health]
        client.append([name, _said(entry.get("repeat")), *(tag("td", value, class_="n") for value in values)])
    heads = ["cell", "repeat", "state", "from, to (s)", "planned", "sent", "seed"]
    figures = [tag("th", head, scope="col", class_="n") for head in health.values()]
    told = [table(["cell", "repeat", *figures], client, caption="The health of the client")] if health else []
    return [table(heads, sent, caption="Cells as they were sent"), *told]


def _health(client: Mapping[str, Any], name: str) -> str:
    value = client.get(name)
    return f"{value:.{_SHARES[name]}%}" if name in _SHARES and value is not None else short(value)
