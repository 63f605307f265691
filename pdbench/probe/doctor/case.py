"""All that is known of a deployment before it is measured: what rules look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pdbench.deployment import Deployment, Server, ServerFacts
from pdbench.probe.doctor.launch import TRANSFER, Launch, whole_number
from pdbench.probe.scrape import Row

# Where an option stands in vLLM's own configuration (/server_info): (section, name).
_CONFIG = {
    "max-num-seqs": ("scheduler_config", "max_num_seqs"),
    "max-model-len": ("model_config", "max_model_len"),
    "dtype": ("model_config", "dtype"),
    "tensor-parallel-size": ("parallel_config", "tensor_parallel_size"),
    "pipeline-parallel-size": ("parallel_config", "pipeline_parallel_size"),
    "data-parallel-size": ("parallel_config", "data_parallel_size"),
    "decode-context-parallel-size": ("parallel_config", "decode_context_parallel_size"),
    "block-size": ("cache_config", "block_size"),
    "kv-cache-dtype": ("cache_config", "cache_dtype"),
    "enable-prefix-caching": ("cache_config", "enable_prefix_caching"),
}


@dataclass(frozen=True, slots=True)
class Patient:
    """One server: how it was started (if a recipe says), and what it says (if it answers)."""

    server: Server
    launch: Launch = field(default_factory=Launch)
    asked: bool = False  # whether it was asked at all
    trouble: str = ""  # why it did not answer
    page_trouble: str = ""  # why there is no metrics page
    config: Mapping[str, Any] = field(default_factory=dict)  # vllm_config of /server_info
    env: Mapping[str, Any] = field(default_factory=dict)  # vllm_env of /server_info
    rows: tuple[Row, ...] = ()
    handoff: Mapping[str, Any] | None = None  # kv_transfer_params that a prefill server returned to a small request

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def facts(self) -> ServerFacts:
        return self.server.facts or ServerFacts()

    @property
    def answers(self) -> bool:
        return self.asked and not self.trouble

    @property
    def down(self) -> bool:
        return self.trouble.startswith("cannot be reached")

    @property
    def unseen(self) -> bool:
        """Nothing is known of it: it cannot be reached, and no recipe says how it is started."""
        return self.down and not self.launch.given

    @property
    def host(self) -> str:
        return urlsplit(self.server.url).hostname or ""

    @property
    def transfer(self) -> Mapping[str, Any] | None:
        """Its kv_transfer_config: as it says itself, else as it was started; None when neither tells."""
        if "kv_transfer_config" in self.config:
            return _table(self.config["kv_transfer_config"])
        if self.launch.transfer is not None:
            return self.launch.transfer
        return {} if self.launch.leaves(TRANSFER) else None

    @property
    def untold(self) -> str:
        """Why its command line does not tell all, where it does not tell of itself; empty where one of them does."""
        if self.config:
            return ""
        more = self.launch.open_end
        return self.launch.opaque or (f"its options may also come from {more}" if more else "")

    @property
    def transfer_untold(self) -> str:
        """Why its kv_transfer_config is not known."""
        if TRANSFER in self.launch.unsaid:
            return f"its --{TRANSFER} has a variable that is not known"
        return self.untold or f"shows no --{TRANSFER}"

    @property
    def extra(self) -> Mapping[str, Any]:
        return _table((self.transfer or {}).get("kv_connector_extra_config"))

    def option(self, name: str) -> Any:
        """An option's value, as the running server says, else as it was started; None when neither tells."""
        section, key = _CONFIG.get(name, ("", ""))
        if (value := _table(self.config.get(section)).get(key)) is not None:
            return value
        return self.launch.flags.get(name)

    def number(self, name: str) -> int | None:
        """The same as a whole number above 0."""
        return whole_number(str(self.option(name))) or None

    def variable(self, name: str) -> str | None:
        """An environment variable of the server."""
        value = self.env.get(name, self.launch.env.get(name))
        return None if value is None else str(value)

    def lacks(self, name: str) -> bool:
        """Whether an environment variable is surely not set: no more of them stand elsewhere."""
        return self.variable(name) is None and (bool(self.env) or not self.launch.elsewhere)

    def total(self, canonical: str, kind: str | None = None, label: str = "") -> float | None:
        """Sum of a series over its ranks; `label` picks rows by a piece of their labels. None: not on the page."""
        values = [row[5] for row in self.rows if row[1] == canonical and kind in (None, row[2]) and label in row[4]]
        return sum(values) if values else None


@dataclass(frozen=True, slots=True)
class Sent:
    """What one small request through the entry showed."""

    trouble: str = ""
    hint: str = ""
    prompt_tokens: int | None = None
    events: int = 0
    spread_s: float = 0.0  # from the first event with output to the last one
    moved: Mapping[str, float] = field(default_factory=dict)  # prompt tokens of the decode servers by source
    fetched_by_prefill: float = 0.0  # prompt tokens whose KV came to the servers named as prefill
    still_fetching: Mapping[str, float] = field(default_factory=dict)  # by decode server; see `rules_live.stuck_fetch`


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment with its patients, the load that is planned (`sweep` of the recipe), and the small request."""

    deployment: Deployment
    patients: tuple[Patient, ...]
    sweep: Mapping[str, Any] = field(default_factory=dict)
    sent: Sent | None = None
    tpot_ms: float | None = None  # as the user gave it

    def of(self, *roles: str) -> tuple[Patient, ...]:
        return tuple(patient for patient in self.patients if patient.server.role in roles)

    @property
    def pair(self) -> tuple[Patient, ...]:
        return self.of("prefill", "decode")

    def handoffs(self) -> Iterator[tuple[Patient, Mapping[str, Any]]]:
        """Prefill and decode servers whose kv_transfer_config is known."""
        return ((patient, patient.transfer) for patient in self.pair if patient.transfer is not None)

    @property
    def mode(self) -> str | None:
        """Push or pull, when all that say it agree."""
        said = {patient.facts.transfer_mode or MODE_OF.get(connector(patient)) for patient in self.pair} - {None}
        return said.pop() if len(said) == 1 else self.deployment.mode if not said else None


MODE_OF: Mapping[str | None, str] = {"NixlPushConnector": "push", "NixlConnector": "pull", "NixlPullConnector": "pull"}


def connector(patient: Patient) -> str | None:
    """The connector's name; of a MultiConnector the first child that hands KV over."""
    return _connector(patient.transfer or {})


def _connector(transfer: Mapping[str, Any]) -> str | None:
    name = transfer.get("kv_connector")
    children = _table(transfer.get("kv_connector_extra_config")).get("connectors")
    if name == "MultiConnector" and isinstance(children, list):
        inner = [_connector(_table(child)) for child in children]
        return next((one for one in inner if one in MODE_OF), inner[0] if inner else None)
    return name if isinstance(name, str) else None


def connectors_named(transfer: Mapping[str, Any]) -> Iterator[str]:
    """Every kv_connector of a table, a MultiConnector's children included."""
    if isinstance(name := transfer.get("kv_connector"), str):
        yield name
    children = _table(transfer.get("kv_connector_extra_config")).get("connectors")
    for child in children if isinstance(children, list) else ():
        yield from connectors_named(_table(child))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
