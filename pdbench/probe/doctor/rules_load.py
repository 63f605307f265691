"""Would the planned load be measured as meant? Slots, KV pool, leases, caches, log lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.steady import steady
from pdbench.probe.doctor.case import MODE_OF, Case, Patient, connector
from pdbench.probe.doctor.finding import Found, Rule, fail, unknown, warn
from pdbench.probe.doctor.launch import whole_number
from pdbench.quantities import count, positive, seconds, several

LEASE_S = 30.0  # vLLM's kv_lease_duration
DEFAULT_TOKENS = (16384, 128)  # what `sweep` sends at most without a recipe
DEFAULT_CELL_S = 60.0
GIVE_SLOTS, GIVE_TPOT = "Give --max-num-seqs.", "Give --tpot MS."
KNOWN_OF_POOL = "Its metrics page tells it (num_gpu_blocks in vllm:cache_config_info), once it runs: then ask again."
_OUTSIDE = ("data-parallel-rank", "data-parallel-external-lb", "data-parallel-hybrid-lb")  # one API server a rank


class Planned(NamedTuple):
    """The heaviest cell of the plan."""

    qps: float | None
    prompt_len: int
    output_len: int
    requests: float | None

    @property
    def tokens(self) -> int:
        return self.prompt_len + self.output_len


def planned(case: Case) -> Planned:
    """From the recipe's [sweep]; what it leaves out are the command's own defaults."""
    table = case.sweep
    prompts = several(_texts(table.get("prompt_lens", DEFAULT_TOKENS[0])), "sweep.prompt_lens", count)
    outputs = several(map(_mean_of, _texts(table.get("output_len", DEFAULT_TOKENS[1]))), "sweep.output_len", count)
    rates = several(_texts(table.get("rates", [])), "sweep.rates", positive)
    qps = max(rates, default=None)
    length_s = seconds(str(table.get("duration", DEFAULT_CELL_S)), "sweep.duration")
    requests = table.get("num_prompts") or (qps and qps * length_s)
    prompt, output = max(prompts), max(outputs)
    if not table:  # no plan: as long as the default sweep, where the servers take that much
        limits = [p.facts.max_model_len for p in case.patients if p.facts.max_model_len]
        prompt = min([prompt, *(limit - output for limit in limits if limit > output)])
    return Planned(qps, prompt, output, float(requests) if requests else None)


def _texts(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _mean_of(length: str) -> str:
    """Of a law of lengths (lognormal:MEAN:CV) its mean; of a trace's the default."""
    kind, _, rest = length.partition(":")
    return {"lognormal": rest.partition(":")[0], "trace": str(DEFAULT_TOKENS[1])}.get(kind, length)


def slots_known(case: Case) -> list[Found] | None:
    """Without max_num_seqs slot waits cannot be told from slow transfers."""
    holders = [patient for patient in case.of("decode", "colocated") if _slots(patient) or not patient.unseen]
    if not holders:
        return None
    return [
        warn(
            patient.name,
            "its max_num_seqs is not known: no default page shows it",
            "Give --max-num-seqs or max_num_seqs in the recipe, or start it with VLLM_SERVER_DEV_MODE=1.",
        )
        for patient in holders
        if _slots(patient) is None
    ]


def slots_agree(case: Case) -> list[Found] | None:
    """The recipe's max_num_seqs against the one that the server runs with."""
    found, compared = [], False
    for patient in case.patients:
        given, runs = patient.server.max_num_seqs, patient.facts.max_num_seqs or patient.number("max-num-seqs")
        if (told := patient.launch.flags.get("max-num-seqs")) is not None and whole_number(str(told)) in (None, 0):
            fix = "Give a whole number above 0."
            found.append(fail(patient.name, f"--max-num-seqs {told} is no number of slots: it stops at start", fix))
        runs = runs * (patient.facts.dp_ranks or 1) if runs else None
        compared |= bool(given and runs) or told is not None
        if given and runs and given != runs:
            fix = "Correct max_num_seqs in the recipe or on the command line."
            found.append(fail(patient.name, f"max_num_seqs {given} was given, it runs with {runs}", fix))
    return found if compared else None


def slots_demand(case: Case) -> list[Found] | None:
    """Little's law before the first request: is the planned rate more than the slots can serve?"""
    load, tpot_ms = planned(case), _tpot_ms(case)
    decode = case.of("decode") or case.of("colocated")
    slots = [_slots(patient) for patient in decode]
    if load.qps is None or not slots or None in slots:
        return None
    if tpot_ms is None:
        return [
            unknown(
                "no TPOT yet: nothing has been decoded, so the slots that the plan needs are not known",
                GIVE_TPOT,
            )
        ]
    needed = load.qps * load.output_len * tpot_ms / 1000
    held = sum(one for one in slots if one)
    if needed < held:
        return []
    evidence = f"{load.qps:g} req/s x {load.output_len} tokens x {tpot_ms:.1f} ms need {needed:.1f} of {held} slots"
    most = held / (load.output_len * tpot_ms / 1000)
    fix = (
        f"Stay below {most:.2g} req/s, or raise --max-num-seqs above {needed:.1f} in all, so that the mean demand fits"
    )
    fix += (
        ": means grow with the run's length there. Short waits take more: pdbench slots says how many for a p99 wait."
    )
    return [warn("", f"{evidence}: that cell will not be steady", fix)]


def pool(case: Case) -> list[Found] | None:
    """max_num_seqs against the KV pool: slots without memory only move the queue."""
    holders = [patient for patient in case.of("decode", "colocated") if not patient.unseen]
    if not holders:
        return None
    load, found = planned(case), []
    for patient in holders:
        blocks, size = patient.facts.num_kv_blocks, patient.facts.block_size
        slots = _slots(patient)
        if not blocks or not size or not slots:
            missing = [("KV pool", KNOWN_OF_POOL)] if not blocks or not size else []
            missing += [] if slots else [("slots", GIVE_SLOTS)]
            found.append(_not_known("its", missing, patient.name))
            continue
        tokens = blocks * size * (patient.facts.dp_ranks or 1)
        fit = tokens // load.tokens
        if fit < 1:
            fix = "Choose shorter prompts, or give the server more KV memory."
            found.append(
                fail(patient.name, f"its KV pool of {tokens:,} tokens holds no request of {load.tokens:,}", fix)
            )
        elif fit < slots:
            fix = "Lower --max-num-seqs, shorten the prompts, or give it more KV memory (FP8 KV cache, more GPUs)."
            evidence = f"{slots} slots, but its KV pool of {tokens:,} tokens holds {fit} requests of {load.tokens:,}"
            found.append(warn(patient.name, evidence, fix))
    return found


def context(case: Case) -> list[Found] | None:
    """The longest request against max_model_len."""
    load, found = planned(case), []
    servers = case.of("prefill", "decode", "colocated")
    limits = [patient.facts.max_model_len or patient.number("max-model-len") for patient in servers]
    if not any(limits):
        return None
    for patient, limit in zip(servers, limits, strict=True):
        if limit and load.tokens > limit:
            fix = "Choose shorter prompt_lens or output_len, or start it with a larger --max-model-len."
            evidence = f"max_model_len {limit} is less than {load.prompt_len} + {load.output_len} tokens"
            found.append(fail(patient.name, evidence, fix))
    return found


def lease(case: Case) -> list[Found] | None:
    """How long prefill keeps KV against how long a request may wait before decode collects it."""
    unread = [
        fail(
            patient.name,
            f"kv_lease_duration {given!r} is no number of seconds above 0",
            f'Write it without quotation marks, such as "kv_lease_duration": {LEASE_S:g}.',
        )
        for patient in case.pair
        if (given := patient.extra.get("kv_lease_duration")) is not None and not _is_time(given)
    ]
    if unread or not case.of("prefill") or planned(case).qps is None:
        return unread or None
    waits_s, decode_slots = _longest_wait_s(case), [_slots(patient) for patient in case.of("decode")]
    found = []
    for patient in case.of("prefill"):
        given = patient.extra.get("kv_lease_duration", LEASE_S)
        if patient.transfer is None or not isinstance(given, int | float):
            continue
        if waits_s is None:
            missing = [("slots", GIVE_SLOTS)] if None in decode_slots else []
            missing += [] if decode_slots else [("servers", "Name them with --decode.")]
            missing += [("TPOT", GIVE_TPOT)] if _tpot_ms(case) is None else []
            found.append(_not_known("the wait for decode cannot be told: decode's", missing, patient.name))
        elif waits_s > given and case.mode == "push":
            fix = "Raise kv_lease_duration above it, lower the rate, or add slots: freed KV is read with status 200."
            found.append(fail(patient.name, f"lease {given:g} s, predicted decode wait {waits_s:.0f} s", fix))
        elif waits_s > given:
            fix = "Raise kv_lease_duration: decode renews it only once the request has reached it."
            found.append(warn(patient.name, f"lease {given:g} s, predicted decode wait {waits_s:.0f} s", fix))
    return found


def _not_known(whose: str, missing: Sequence[tuple[str, str]], where: str) -> Found:
    """Only what is missing is named, each with what would tell it."""
    names = " and ".join(name for name, _ in missing)
    plural = len(missing) > 1 or names.endswith("s")
    fix = " ".join(dict.fromkeys(fix for _, fix in missing))
    return unknown(f"{whose} {names} {'are' if plural else 'is'} not known", fix, where)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _longest_wait_s(case: Case) -> float | None:
    """p99 of the wait for a decode slot; of an overloaded run the wait of its last request."""
    load, tpot_ms = planned(case), _tpot_ms(case)
    slots = [_slots(patient) for patient in case.of("decode")]
    if load.qps is None or tpot_ms is None or not slots or None in slots:
        return None
    pools = len(slots)
    demand = Demand(load.qps / pools, float(load.output_len), Tpot(tpot_ms))
    each = min(one for one in slots if one)
    waits = steady(demand, each, simulate=False).waits
    if waits is not None:
        return waits.p99_s
    return (load.requests or 0.0) / pools * (1 / demand.capacity_qps(each) - 1 / demand.qps)


def _tpot_ms(case: Case) -> float | None:
    """Mean time per output token: as given, else what the decode servers show so far."""
    if case.tpot_ms is not None:
        return case.tpot_ms
    total = count_ = 0.0
    for patient in case.of("decode", "colocated"):
        total += patient.total("itl_s", "sum") or 0.0
        count_ += patient.total("itl_s", "count") or 0.0
    return 1000 * total / count_ if count_ else None


def _slots(patient: Patient) -> int | None:
    return patient.server.slots or patient.number("max-num-seqs")


def prefix_caching(case: Case) -> list[Found]:
    """A fixed seed replays prompts: with prefix caching on, the second run measures the cache."""
    if case.sweep.get("seed") is None:
        return []
    on, silent = [], []
    for patient in case.of("prefill", "decode", "colocated"):
        option = patient.option("enable-prefix-caching")
        caching = patient.facts.prefix_caching if patient.facts.prefix_caching is not None else option
        if caching is None and patient.launch.leaves("enable-prefix-caching"):
            caching = True  # vLLM's default
        if caching in (True, "True", "true"):
            on.append(patient.name)
        elif caching is None:
            silent.append(patient.name)
    if not on:
        evidence = "whether prefix caching is on is not known, and the plan fixes its seed"
        return [unknown(evidence, "Leave the seed out: fresh prompts every run.", ", ".join(silent))] if silent else []
    fix = "Leave the seed out (fresh prompts every run), or start the servers with --no-enable-prefix-caching."
    return [fail(", ".join(on), "prefix caching is on and the plan fixes its seed: a second run hits the cache", fix)]


def failure_policy(case: Case) -> list[Found] | None:
    """With `fail` a failed handoff is an error that is seen, with `recompute` a slow answer with status 200."""
    if not any(True for _ in case.handoffs()):
        return None
    found = []
    for patient, transfer in case.handoffs():
        policy = transfer.get("kv_load_failure_policy", "fail")
        if policy == "recompute":
            fix = "Set it to fail while measuring, or watch decode-recomputed in the report."
            evidence = "kv_load_failure_policy is recompute: failed handoffs look like slow successes"
            found.append(warn(patient.name, evidence, fix))
        elif policy != "fail":
            evidence = f"kv_load_failure_policy is {policy!r}, which vLLM does not know"
            found.append(fail(patient.name, evidence, "Set it to fail, or to recompute."))
    return found


def dead_settings(case: Case) -> list[Found] | None:
    """Settings that no longer do anything."""
    if not any(patient.launch.words for patient in case.pair):
        return None
    name, found = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT", []
    for patient in case.pair:
        if patient.launch.env.get(name) is not None:
            evidence = f"{name} has no effect since kv_lease_duration replaced it"
            found.append(warn(patient.name, evidence, "Set kv_lease_duration."))
        if "kv_port" in (patient.launch.transfer or {}) and connector(patient) in MODE_OF:
            evidence = "kv_port is not NIXL's: its side channel stays on VLLM_NIXL_SIDE_CHANNEL_PORT"
            found.append(warn(patient.name, evidence, "Set VLLM_NIXL_SIDE_CHANNEL_PORT, and remove kv_port."))
    return found


def statistics(case: Case) -> list[Found] | None:
    """What switches off what the report rests on."""
    if not any(patient.launch.words or patient.config for patient in case.patients):
        return None
    found = []
    for patient in case.patients:
        if patient.option("disable-log-stats") is True:
            fix = "Remove --disable-log-stats: it removes the metrics too."
            found.append(fail(patient.name, "--disable-log-stats: no vllm: series, so this side cannot be seen", fix))
        if patient.variable("NIXL_TELEMETRY") in ("n", "N", "0", "false"):
            fix = "Set NIXL_TELEMETRY=y: without it vLLM records no transfer times."
            found.append(warn(patient.name, "NIXL telemetry is off: no transfer and no post time will be seen", fix))
        if why := _log_is_off(patient):
            fix = "Scrape /metrics (pdbench does), or start it with --api-server-count 1 and INFO for the log lines."
            evidence = f"{why}: the periodic log, with its KV Transfer metrics line, is off"
            found.append(warn(patient.name, evidence, fix))
    return found


def _log_is_off(patient: Patient) -> str:
    """Why vLLM prints no periodic line: several API servers, as many as DP ranks where nothing else is said."""
    level = str(patient.variable("VLLM_LOGGING_LEVEL") or "INFO").upper()
    if level in ("WARNING", "ERROR", "CRITICAL"):
        return f"VLLM_LOGGING_LEVEL is {level}"
    if not patient.launch.words:
        return ""
    servers = patient.number("api-server-count")
    if servers is not None:
        return f"{servers} API servers" if servers > 1 else ""
    balanced_outside = any(patient.launch.flags.get(name) is not None for name in _OUTSIDE)
    ranks = patient.number("data-parallel-size") or 1
    return f"{ranks} DP ranks" if ranks > 1 and not balanced_outside else ""


def longest_answer_s(case: Case) -> float:
    """The longest that a request of the plan waits for a slot and is answered for; 0 where nothing tells."""
    return (_longest_wait_s(case) or 0.0) + planned(case).output_len * (_tpot_ms(case) or 0.0) / 1000


NEEDS_LAUNCH = {"dead-settings", "statistics-off"}
NEEDS_PLAN = {"slots-demand", "context", "prefix-caching"}
RULES: dict[str, Rule] = {
    "slots-known": slots_known,
    "slots-agree": slots_agree,
    "slots-demand": slots_demand,
    "kv-pool": pool,
    "context": context,
    "lease": lease,
    "prefix-caching": prefix_caching,
    "failure-policy": failure_policy,
    "dead-settings": dead_settings,
    "statistics-off": statistics,
}
