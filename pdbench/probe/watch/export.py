"""The derived values as Prometheus metrics: base units, one name a meaning, absent where nothing was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pdbench.errors import UsageError

if TYPE_CHECKING:
    from pdbench.probe.watch.frame import Frame

CAUSE_CODES = (
    "decode-slots", "decode-kv-pool", "prefill-queue", "prefill-compute", "engine-loop-blocking", "transfer-bandwidth",
    "completion-polling", "not-distinguishable",
)  # fmt: skip
FLAG_CODES = (
    "kv-expired", "decode-recomputed", "failed-transfers", "not-steady-state", "stall", "server-restarted",
    "metrics-missing",
)  # fmt: skip
_PLAIN = {
    "pdbench_requests_per_second": ("requests_per_s", 1.0, "Requests that ended"),
    "pdbench_prompt_tokens_per_second": ("prompt_tokens_per_s", 1.0, "Prompt tokens processed by prefill"),
    "pdbench_output_tokens_per_second": ("output_tokens_per_s", 1.0, "Tokens generated"),
    "pdbench_transfers_per_second": ("transfers_per_s", 1.0, "KV transfers completed"),
    "pdbench_transfer_bytes_per_second": ("transfer_nbytes_per_s", 1.0, "KV bytes moved"),
    "pdbench_handoff_seconds": ("handoff_ms", 1e-3, "Mean of post, transfer and poll of a handoff"),
    "pdbench_tpot_seconds": ("tpot_ms", 1e-3, "Mean time per output token"),
    "pdbench_slots_needed": ("slots_needed", 1.0, "Decode slots that the load needs, by Little's law"),
    "pdbench_slots_held": ("slots_held", 1.0, "Decode slots held, by Little's law"),
    "pdbench_slots_available": ("slots_available", 1.0, "Decode slots there are"),
}


class Exporter:
    """Serves the newest frame. Values are those of the last ten seconds."""

    def __init__(self) -> None:
        self.frame: Frame | None = None

    def serve(self, where: str) -> None:
        """`PORT` on loopback or `ADDRESS:PORT`. Raises UsageError when it cannot be opened."""
        address, _, port = where.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise UsageError(f"--export wants PORT or ADDRESS:PORT, not {where!r}.")
        registry = CollectorRegistry()
        registry.register(self)
        try:
            start_http_server(int(port), addr=address.strip("[]") or "127.0.0.1", registry=registry)
        except OSError as error:
            raise UsageError(f"--export {where} cannot be opened: {error.strerror}.", "Choose another port.") from None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        frame = self.frame
        if frame is None:
            return
        target = frame.deployment.target
        for name, (field, scale, text) in _PLAIN.items():
            value = getattr(frame.now, field)
            if value is not None:
                gauge = GaugeMetricFamily(name, f"{text}, last ten seconds.", labels=["target"])
                gauge.add_metric([target], value * scale)
                yield gauge
        parts = GaugeMetricFamily(
            "pdbench_ttft_part_seconds", "Mean part of TTFT seen on the servers.", labels=["target", "part"]
        )
        for part, value in frame.now.parts_ms.items():
            parts.add_metric([target, part], value / 1000)
        yield parts
        yield _flags(
            "pdbench_validity_flag", "1 while the code holds.", "code", target, FLAG_CODES, set(frame.now.flags)
        )
        yield _flags(
            "pdbench_cause", "1 for the cause that dominates TTFT.", "cause", target, CAUSE_CODES, {frame.now.cause}
        )
        yield from _stores(frame)
        yield from _servers(frame)


def _stores(frame: Frame) -> Iterator[Metric]:
    """What an offload or a store loads and saves, beside the handoffs: by connector and direction."""
    for unit, text in (("operations", "Operations"), ("bytes", "KV bytes moved")):
        family = GaugeMetricFamily(
            f"pdbench_store_{unit}_per_second",
            f"{text} of connectors that hand nothing over, last ten seconds.",
            labels=["target", "connector", "direction"],
        )
        for way, moved in frame.now.stores.items():
            connector, _, direction = way.rpartition(" ")
            value = moved.get("nbytes_per_s" if unit == "bytes" else "operations_per_s")
            if value is not None:
                family.add_metric([frame.deployment.target, connector, direction], value)
        yield family


def _flags(
    name: str, text: str, label: str, target: str, codes: tuple[str, ...], on: set[str | None] | set[str]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["target", label])
    for code in codes:
        family.add_metric([target, code], 1.0 if code in on else 0.0)
    return family


def _servers(frame: Frame) -> Iterator[Metric]:
    labels = ["target", "server", "role"]
    up = GaugeMetricFamily("pdbench_server_up", "Whether the last look at the server's page succeeded.", labels=labels)
    slots = GaugeMetricFamily("pdbench_server_slots", "Slots of the server.", labels=labels)
    shown = {
        "running": GaugeMetricFamily("pdbench_server_running_requests", "Requests running.", labels=labels),
        "waiting": GaugeMetricFamily("pdbench_server_waiting_requests", "Requests waiting.", labels=labels),
        "kv_cache_usage": GaugeMetricFamily("pdbench_server_kv_cache_usage_ratio", "KV cache in use.", labels=labels),
    }
    stages = GaugeMetricFamily(
        "pdbench_server_stage_requests", "Requests by stage of their KV fetch.", labels=[*labels, "stage"]
    )
    restarts = CounterMetricFamily("pdbench_server_restarts", "Counter resets seen.", labels=labels)
    for server in frame.servers:
        place = [frame.deployment.target, server.name, server.role]
        up.add_metric(place, float(server.up))
        restarts.add_metric(place, server.restarts)
        if server.slots is not None:
            slots.add_metric(place, server.slots)
        for name, family in shown.items():
            if name in server.now:
                family.add_metric(place, server.now[name])
        for name, value in server.now.items():
            if name.startswith("stage."):
                stages.add_metric([*place, name.removeprefix("stage.")], value)
    yield from (up, slots, *shown.values(), stages, restarts)
