"""What do the servers show right now, and what did one small request show?"""

from __future__ import annotations

from pdbench.probe.doctor.case import Case, Patient
from pdbench.probe.doctor.finding import Found, Rule, fail, unknown, warn

BUNCHED_S = 0.0005  # events of a stream that all came within this were collected before they were passed on
IDLE_KV = 0.02  # KV use that an idle server may show
FEW_TOKENS = 64  # prompt tokens that decode may compute itself: the last block of a prompt, and a step


def reachable(case: Case) -> list[Found]:
    """Every server that is named must answer."""
    return [
        fail(patient.name, f"{patient.server.url}: {patient.trouble}", _remedy(patient.trouble))
        for patient in case.patients
        if patient.asked and patient.trouble
    ]


def _remedy(trouble: str) -> str:
    if "credentials" in trouble:
        return "Set PDBENCH_API_KEY, or use --api-key-env NAME or --api-key-file FILE."
    return "Start it, or correct its URL."


def metrics_pages(case: Case) -> list[Found] | None:
    """Prefill's and decode's pages: half of the report."""
    if not any(patient.answers for patient in case.of("prefill", "decode", "colocated")):
        return None
    return [
        fail(
            patient.name, f"metrics page {patient.page_trouble}", "Correct metrics_url; --disable-log-stats removes it."
        )
        for patient in case.of("prefill", "decode", "colocated")
        if patient.answers and patient.page_trouble
    ]


def named(case: Case) -> list[Found] | None:
    """What cannot be seen where only the entry is named."""
    if not case.of("proxy") or (case.of("prefill") and case.of("decode")):
        return None
    missing = " and ".join(role for role in ("prefill", "decode") if not case.of(role))
    text = (
        f"the {missing} servers are not named: whether KV is handed over, and how many slots there are, is not checked"
    )
    flags = " and ".join(f"--{role} URL" for role in ("prefill", "decode") if not case.of(role))
    return [unknown(text, f"Add {flags}.")]


def answers(case: Case) -> list[Found] | None:
    """One small request through the entry."""
    entries = case.of("proxy", "colocated")
    if entries and all(patient.down for patient in entries):
        return None
    if case.sent is None:
        return [unknown("no request was sent: nothing takes requests here")]
    return [fail("", case.sent.trouble, case.sent.hint)] if case.sent.trouble else []


def disaggregated(case: Case) -> list[Found] | None:
    """Did that request's KV come from prefill, or did decode compute the prompt?"""
    sent = case.sent
    if sent is None or sent.trouble or not case.of("decode"):
        return None
    if not sent.moved:
        return [unknown("decode shows no prompt tokens by source, so nobody can tell whether KV came from prefill")]
    external, computed = sent.moved.get("external_kv_transfer", 0.0), sent.moved.get("local_compute", 0.0)
    if external == 0 and computed > FEW_TOKENS:
        if sent.fetched_by_prefill:
            evidence = "KV came to the servers named as prefill, decode computed the prompt: the roles look exchanged"
            return [fail("", evidence, "Exchange the URLs of prefill and decode.")]
        evidence = f"decode computed the request's {computed:.0f} prompt tokens itself; none came from prefill"
        fix = "The proxy drops kv_transfer_params, or sends to decode only: it must pass prefill's answer on."
        return [fail("", evidence, fix)]
    return []


def streaming(case: Case) -> list[Found] | None:
    """A proxy that collects a stream and passes it on at once hides every inter-token latency."""
    sent = case.sent
    if sent is None or sent.trouble or sent.events < 4:
        return None
    if sent.spread_s > BUNCHED_S:
        return []
    evidence = f"{sent.events} events of a stream came within {sent.spread_s * 1000:.2f} ms: something collects them"
    return [warn("", evidence, "Switch off response buffering in the proxy (nginx: proxy_buffering off).")]


def kv_expired(case: Case) -> list[Found] | None:
    """KV that was freed before decode fetched it, since these servers started."""
    if not any(patient.rows for patient in case.pair):
        return None
    found = []
    for patient in case.pair:
        late, expired = patient.total("nixl_used_after_expiry"), patient.total("nixl_kv_expired")
        if late:
            fix = "Outputs so far are not to be trusted. Raise kv_lease_duration, lower the load, add decode slots."
            found.append(
                fail(patient.name, f"KV was used after its lease had ended {late:.0f} times (status 200)", fix)
            )
        elif expired:
            fix = "Raise kv_lease_duration or find out why decode does not come: its slots, a dead proxy, aborts."
            found.append(warn(patient.name, f"the KV of {expired:.0f} requests expired before it was fetched", fix))
    return found


def failed_transfers(case: Case) -> list[Found] | None:
    """Transfers, handshakes and notifications that failed since these servers started."""
    if not any(patient.rows for patient in case.pair):
        return None
    return [
        warn(patient.name, f"{failed:.0f} NIXL transfers, handshakes or notifications failed", "Look at its log.")
        for patient in case.pair
        if (failed := patient.total("nixl_failed_transfers"))
    ]


def stuck_kv(case: Case) -> list[Found] | None:
    """KV that nothing runs with: pinned by requests that nobody fetched, or leaked."""
    if not any(patient.rows for patient in case.pair):
        return None
    found = []
    for patient in case.pair:
        busy = (patient.total("running") or 0.0) + (patient.total("waiting") or 0.0)
        usage = max((row[5] for row in patient.rows if row[1] == "kv_cache_usage"), default=0.0)
        if patient.rows and not busy and usage > IDLE_KV:
            fix = "Wait one lease and look again; if it stays, restart the server: blocks are stranded."
            found.append(warn(patient.name, f"KV use {usage:.0%} with nothing running or waiting", fix))
    return found


def stuck_fetch(case: Case) -> list[Found] | None:
    """Fetches of KV that go on while nothing else does: a prefill that is gone, or a word of it that was lost."""
    if case.sent is None or not case.sent.still_fetching:
        return None
    fix = "Look for failed transfers on prefill and in both logs; such requests end only with a restart of decode."
    return [
        warn(name, f"{stuck:.0f} requests were fetching KV before and after the small request, with no other load", fix)
        for name, stuck in case.sent.still_fetching.items()
        if stuck
    ]


def foreign_load(case: Case) -> list[Found] | None:
    """Somebody else's requests would be measured with ours."""
    if not any(patient.rows for patient in case.patients):
        return None
    return [
        warn(patient.name, f"{busy:.0f} requests are running or waiting now", "Measure when nobody else sends.")
        for patient in case.patients
        if (busy := _busy(patient))
    ]


def _busy(patient: Patient) -> float:
    return (patient.total("running") or 0.0) + (patient.total("waiting") or 0.0)


def several_answers(case: Case) -> list[Found] | None:
    """n > 1: one prompt with several answers does not work over a handoff."""
    if not any(patient.rows for patient in case.pair):
        return None
    found = []
    for patient in case.pair:
        every, single = patient.total("params_n", "count"), patient.total("params_n", "bucket", '"le":"1.0"')
        if every is not None and single is not None and every > single:
            fix = "Send n requests instead: several answers to one prompt are not supported in P/D."
            found.append(warn(patient.name, f"{every - single:.0f} requests asked for n > 1", fix))
    return found


RULES: dict[str, Rule] = {
    "reachable": reachable,
    "metrics-page": metrics_pages,
    "roles": named,
    "answers": answers,
    "disaggregated": disaggregated,
    "streaming": streaming,
    "kv-expired": kv_expired,
    "failed-transfers": failed_transfers,
    "stuck-kv": stuck_kv,
    "stuck-fetch": stuck_fetch,
    "foreign-load": foreign_load,
    "several-answers": several_answers,
}
