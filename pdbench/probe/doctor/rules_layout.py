"""Do both sides lay KV out alike? What vLLM compares in the handshake, and what it only converts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pdbench.probe.doctor.case import MODE_OF, Case, Patient, connector
from pdbench.probe.doctor.finding import GIVE_COMMAND, Found, Rule, fail, unknown, warn
from pdbench.probe.doctor.shell import is_open

# Part of the hash that both sides compare in the handshake: what must be equal (vLLM 0.32, nixl/metadata.py).
_HASHED = {"dtype": "dtype", "kv-cache-dtype": "KV cache dtype", "attention-backend": "attention backend"}
_OFF_BY_DEFAULT = {
    "speculative-config": "speculative decoding",
    "disable-hybrid-kv-cache-manager": "the hybrid KV cache manager",
}
_ROLES = ("prefill", "decode")
_DEFAULT_BLOCK = 16  # tokens, on most backends
_SAME = {"half": "float16", "float": "float32"}
DEFAULT_BACKENDS = ("UCX",)


def layouts(case: Case) -> list[Found] | None:
    """What else the handshake compares, and what it only slows down."""
    found, compared = [], False
    for option, title in _HASHED.items():
        each = {patient.name: value for patient in case.pair if (value := _hashed(patient, option)) is not None}
        sides = {role: {each[p.name] for p in case.of(role) if p.name in each} for role in _ROLES}
        compared |= all(sides.values())
        if all(sides.values()) and sides["prefill"] != sides["decode"]:
            text = ", ".join(f"{name} {value}" for name, value in each.items())
            found.append(fail("", f"{title} differs ({text}): the handshake is refused", "Make both sides equal."))
    found += [*_only_one_side(case), *_against_a_default(case), *_tensor_parallel(case)]
    blocks = {patient.name: size for patient in case.pair if (size := _block_size(patient))}
    if len(set(blocks.values())) > 1:
        text = ", ".join(f"{name} {size}" for name, size in blocks.items())
        fix = "Use the larger --block-size on both sides."
        found.append(warn("", f"block sizes differ ({text}): KV is converted, in many small descriptors", fix))
    return found if compared or found or len(blocks) > 1 else None


def _hashed(patient: Patient, option: str) -> str | None:
    """What is compared, as far as it is known: `auto` is what the model or the backend makes of it."""
    value = str(patient.option(option)).removeprefix("torch.").lower()
    return None if value in ("none", "auto") else _SAME.get(value, value)


def _against_a_default(case: Case) -> Iterator[Found]:
    """What is set on some servers, while others start with the default."""
    for option, title in (*_HASHED.items(), ("block-size", "block size")):
        given = {p.name: value for p in case.pair if (value := _hashed(p, option)) is not None}
        left = [p.name for p in case.pair if p.name not in given and p.launch.leaves(option) and not p.config]
        if option == "block-size":
            given = {name: size for name, size in given.items() if size != str(_DEFAULT_BLOCK)}
            left = [p.name for p in case.pair if p.name in left and _block_size(p) is None]
        if not given or not left:
            continue
        set_on = ", ".join(f"{name} {value}" for name, value in given.items())
        told = f"{title} is set on one side only ({set_on}, {', '.join(left)} default)"
        if option == "block-size":
            fix = "Give --block-size to both sides."
            yield warn("", f"{told}: unless the default is the same, KV is converted, in many small descriptors", fix)
        elif option == "kv-cache-dtype":
            fix = f"Give --{option} to both sides, or to neither."
            yield fail("", f"{told}: the handshake is refused, unless the model itself says so", fix)
        else:
            fix = f"Give --{option} to both sides, or to neither."
            yield warn("", f"{told}: the handshake is refused if the default is another", fix)


def _tensor_parallel(case: Case) -> Iterator[Found]:
    """Ranks of one side share ranks of the other, as many each: the larger TP is a multiple of the smaller."""
    for prefill in case.of("prefill"):
        for decode in case.of("decode"):
            first, second = _tp(prefill), _tp(decode)
            if first and second and max(first, second) % min(first, second):
                evidence = (
                    f"tensor parallel sizes {first} and {second}: neither divides the other, no KV is handed over"
                )
                fix = "Choose sizes of which one is a multiple of the other."
                yield fail(f"{prefill.name} and {decode.name}", evidence, fix)


def _tp(patient: Patient) -> int | None:
    return patient.number("tensor-parallel-size") or (
        1 if patient.launch.leaves("tensor-parallel-size") and not patient.config else None
    )


def _only_one_side(case: Case) -> list[Found]:
    """What is off unless a command line says otherwise, and is part of the hash."""
    found = []
    for option, title in _OFF_BY_DEFAULT.items():
        if not all(p.launch.leaves(option) or option in p.launch.flags for p in case.pair) or not case.pair:
            continue
        given = {role: {p.launch.flags.get(option) not in (None, False) for p in case.of(role)} for role in _ROLES}
        if given["prefill"] != given["decode"]:
            evidence = f"--{option} is on one side only: {title} is part of what the handshake compares"
            found.append(fail("", evidence, "Give it to both sides or to neither."))
    return found


def _block_size(patient: Patient) -> int | None:
    return patient.facts.block_size or patient.number("block-size")


def models(case: Case) -> list[Found] | None:
    """Prefill and decode serve one model: KV of another is refused, or is garbage."""
    served = {patient.name: set(patient.facts.models) or _launched(patient) for patient in case.pair}
    known = {name: names for name, names in served.items() if names}
    dark = [unknown(one.untold, GIVE_COMMAND, one.name) for one in case.pair if one.name not in known and one.untold]
    if len(known) < 2 or set.intersection(*known.values()):
        return dark or (None if len(known) < 2 else [])
    each = ", ".join(f"{name} {' or '.join(sorted(names))}" for name, names in known.items())
    return [fail("", f"no model is served by all ({each})", "Start both sides with one model, and one name for it.")]


def _launched(patient: Patient) -> set[str]:
    """The name in `vllm serve MODEL`, or the name that it is served under."""
    flags, words = patient.launch.flags, patient.launch.words
    name = flags.get("served-model-name") or flags.get("model")
    if name is None and "serve" in words[:-1]:
        name = words[words.index("serve") + 1]
    return {name} if isinstance(name, str) and not name.startswith("-") and not is_open(name) else set()


def backends(case: Case) -> list[Found] | None:
    """NIXL moves KV over a backend that both sides have."""
    each = {patient.name: _backends(patient.extra) for patient, _ in case.handoffs() if connector(patient) in MODE_OF}
    if len(each) < 2:
        return None
    if set.intersection(*map(set, each.values())):
        return []
    text = ", ".join(f"{name} {'+'.join(names)}" for name, names in each.items())
    fix = 'Give both sides the same "backends" in kv_connector_extra_config.'
    return [fail("", f"the NIXL backends have nothing in common ({text})", fix)]


def _backends(extra: Mapping[str, Any]) -> tuple[str, ...]:
    given = extra.get("backends", DEFAULT_BACKENDS)
    return tuple(map(str, given)) if isinstance(given, list | tuple) else (str(given),)


def compatibility_check(case: Case) -> list[Found]:
    """enforce_handshake_compat false switches the only check of layouts off."""
    return [
        warn(
            patient.name, "enforce_handshake_compat is off: a wrong layout gives wrong text, not an error", "Remove it."
        )
        for patient in case.pair
        if patient.extra.get("enforce_handshake_compat") is False
    ]


NEEDS_CONFIG = {"handshake-check"}
RULES: dict[str, Rule] = {
    "layout": layouts,
    "served-model": models,
    "backends": backends,
    "handshake-check": compatibility_check,
}
