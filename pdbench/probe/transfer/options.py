"""From the flags of `probe-transfer` to a Plan, and to what is asked about it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pdbench.errors import Unreachable, UsageError
from pdbench.littles_law import plan_options
from pdbench.littles_law.kv import KvShape
from pdbench.littles_law.links import Link
from pdbench.probe.transfer.cuda import gpus
from pdbench.probe.transfer.pattern import IDS, Pattern, of_bytes, of_prompt
from pdbench.probe.transfer.plan import Plan
from pdbench.quantities import count, nbytes, seconds, several

MEMORIES = {"auto": "auto", "dram": "DRAM", "vram": "VRAM"}
OPS = {"read": "READ", "pull": "READ", "write": "WRITE", "push": "WRITE"}
DEFAULT_PROMPT_LEN = 16_000
DEFAULT_BYTES, DEFAULT_DESCRIPTORS = "64MiB", 8192
PREDICTED_LENS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)


def plan_from(shape: KvShape | None, given: Mapping[str, Any]) -> Plan:
    """The plan of the flags, by their names; which backends there are is found out later."""
    plan_options.check_layout(given["layout"])
    lens, blocks, raw, pieces = (given[name] or [] for name in ("prompt_len", "block_size", "nbytes", "descriptors"))
    return Plan(
        patterns(shape, lens, blocks, given["tp"], given["layout"], raw, pieces),
        ids_of(given["ids"] or []),
        ops_of(given["op"] or []),
        ("UCX",),
        memories(given["memory"] or []),
        tuple(several(given["in_flight"] or ["1"], "--in-flight", count)),
        interval(given["poll_interval"]),
        given["nixl_threads"],
        seconds(given["duration"], "--duration"),
        given["repeats"],
        gpu_pair(given["gpu"], one_host=given["connect"] is None),
        given["seed"],
    )


def patterns(
    shape: KvShape | None,
    prompt_lens: Sequence[str],
    block_sizes: Sequence[str],
    tp: int,
    layout: str,
    raw_bytes: Sequence[str],
    raw_descriptors: Sequence[str],
) -> tuple[Pattern, ...]:
    """What is moved: a model's prompts block size by block size, or raw bytes."""
    if shape is None:
        if prompt_lens or block_sizes:
            raise UsageError("--prompt-len and --block-size need a model.", "Add --model Qwen3-32B, or use --bytes.")
        sizes = [nbytes(text, "--bytes") for text in _split(raw_bytes) or [DEFAULT_BYTES]]
        default = [str(DEFAULT_DESCRIPTORS)] if not raw_bytes else ["1"]
        pieces = several(raw_descriptors or default, "--descriptors", count)
        if min(sizes) <= 0:
            raise UsageError("--bytes wants a size above 0.")
        return tuple(of_bytes(size, number) for size in sizes for number in pieces)
    if raw_bytes or raw_descriptors:
        raise UsageError("--bytes and --descriptors exclude --model.", "The model says how much is moved.")
    lens = several(prompt_lens or [str(DEFAULT_PROMPT_LEN)], "--prompt-len", count)
    blocks = several(block_sizes or ["16"], "--block-size", count)
    return tuple(of_prompt(shape, tokens, block, tp, layout) for tokens in lens for block in blocks)


def predicted(shape: KvShape | None, plan: Plan, tp: int, layout: str) -> list[dict[str, Any]]:
    """The prompts that the report predicts a handoff for."""
    if shape is None:
        return []
    lens = sorted({*PREDICTED_LENS, *(pattern.tokens for pattern in plan.patterns if pattern.tokens)})
    found = []
    for block in dict.fromkeys(pattern.block_tokens for pattern in plan.patterns):
        for tokens in lens:
            pattern = of_prompt(shape, tokens, block or 16, tp, layout)
            sizes = {"nbytes": pattern.nbytes, "descriptors": pattern.descriptors, "regions": pattern.regions}
            found.append({"tokens": tokens, "block_tokens": block, **sizes})
    return found


def named(values: Sequence[str], option: str, known: dict[str, str], default: Sequence[str]) -> tuple[str, ...]:
    """A list-valued option whose values have to be known ones, in our spelling."""
    words = [word.lower() for word in _split(values)] or list(default)
    unknown = next((word for word in words if word not in known), None)
    if unknown is not None:
        raise UsageError(f"{option} {unknown}: not known.", f"Known: {', '.join(known)}.")
    return tuple(dict.fromkeys(known[word] for word in words))


def memories(values: Sequence[str]) -> tuple[str, ...]:
    found = named(values, "--memory", MEMORIES, ["auto"])
    if "auto" in found and len(found) > 1:
        raise UsageError("--memory auto excludes dram and vram.", "Name both, or leave it to auto.")
    return found


def ids_of(values: Sequence[str]) -> tuple[str, ...]:
    return named(values, "--ids", {name: name for name in IDS}, IDS)


def ops_of(values: Sequence[str]) -> tuple[str, ...]:
    return named(values, "--op", OPS, ["read", "write"])


def backends(values: Sequence[str], survey: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The backends to measure: those that are named, else UCX and every other that loads and has a peer."""
    known = {str(each["backend"]).lower(): each for each in survey}
    words = [word.lower() for word in _split(values)]
    if not words:
        others = [
            str(each["backend"]) for each in survey if each["loads"] and each["peers"] and each["backend"] != "UCX"
        ]
        return ("UCX", *others)
    for word in words:
        each = known.get(word)
        if each is None:
            raise UsageError(f"--backend {word}: this NIXL has none.", f"It has: {', '.join(known)}.")
        if not each["loads"] and word != "ucx":  # UCX's own reasons come from its log when it is started
            raise Unreachable(f"the backend {each['backend']} does not load: {each['why']}.", "Measure --backend ucx.")
        if each["loads"] and not each["peers"]:
            raise UsageError(f"--backend {word}: it stores, and has no peer.", "Use UCX or LIBFABRIC.")
    return tuple(dict.fromkeys(str(known[word]["backend"]) for word in words))


def gpu_pair(value: str | None, *, one_host: bool) -> tuple[int, int]:
    """The GPUs of prefill and decode; on two hosts each names its own. Two of one host, where it has two."""
    if value is None:
        return (0, 1) if one_host and gpus()[0] > 1 else (0, 0)
    words = value.split(",")
    if len(words) > 2 or not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--gpu wants an index such as 0, or prefill's and decode's as 0,1, not {value!r}.")
    return int(words[0]), int(words[-1])


def address(text: str, option: str) -> tuple[str, int]:
    """`10.0.0.1:5700` or `[::1]:5700`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} wants ADDRESS:PORT, such as 10.0.0.1:5700, not {text!r}.")
    return host, int(port)


def link_document(link: Link | None) -> dict[str, Any] | None:
    if link is None:
        return None
    return {"name": "the link" if link.what == "as given" else link.what, "gb_s": link.line_gb_s}


def interval(text: str | None) -> float | None:
    if text is None:
        return None
    found = seconds(text, "--poll-interval")
    if found <= 0:
        raise UsageError("--poll-interval wants a time above 0, such as 10ms.")
    return found


def shape_of(model: str | None, config: Path | None, kv_dtype: str, tp: int) -> KvShape | None:
    return None if model is None and config is None else plan_options.shape_of(model, config, kv_dtype, tp)


def _split(values: Sequence[str]) -> list[str]:
    return [word.strip() for value in values for word in value.split(",") if word.strip()]
