"""One picture of the deployment: what is drawn, printed as JSON and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pdbench.counted import bytes_unsure
from pdbench.deployment import Deployment
from pdbench.probe.watch.reading import Reading, read
from pdbench.probe.watch.totals import Watched, by_role
from pdbench.probe.watch.window import History

NOW_S, LONG_S = 10.0, 300.0


@dataclass(frozen=True, slots=True)
class Frame:
    """`now` is the last ten seconds (or two looks, where they are rarer), `long` the last five minutes."""

    deployment: Deployment
    servers: Sequence[Watched]
    now: Reading
    long: Reading

    @property
    def verdict(self) -> str:
        """Of the last seconds; of the longer window where those had too few requests and it has enough."""
        over = not self.now.decided and self.long.decided and self.long.length_s > self.now.length_s
        return f"over {self.long.words}: {self.long.verdict}" if over else self.now.verdict

    def document(self) -> dict[str, Any]:
        """As `--json` prints it; what was not measured is absent."""
        return {
            "simulated": self.deployment.simulated,
            "target": self.deployment.target,
            "servers": [_known(_server(server)) for server in self.servers],
            "now": _known(asdict(self.now)),
            "five_minutes": _known(asdict(self.long)),
        }


def _server(server: Watched) -> dict[str, Any]:
    now = server.now
    stages = {name.removeprefix("stage."): value for name, value in now.items() if name.startswith("stage.")}
    return {
        "server": server.name,
        "role": server.role,
        "up": server.up,
        "trouble": server.trouble or None,
        "running": now.get("running", now.get("inflight")),
        "slots": server.slots,
        "waiting": now.get("waiting"),
        "waiting_by_stage": stages or None,
        "kv_cache_usage": now.get("kv_cache_usage"),
        "restarts": server.restarts,
    }


def _known(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


class Watch:
    """The servers, their history and the step from one look to the next frame."""

    def __init__(self, deployment: Deployment, interval_s: float) -> None:
        self.deployment = deployment
        self.servers = [
            Watched(server.name, server.role, server.slots)
            for server in deployment.servers
            if server.metrics_url is not None
        ]
        self._history = History(LONG_S)
        self._now_s = max(NOW_S, 2 * interval_s)
        self._certain = bytes_unsure(deployment) is None

    @property
    def strangers(self) -> bool:
        """Whether a server is up of which nothing was learnt, since it was not there when the view began."""
        known = {server.name for server in self.deployment.servers if server.facts and server.facts.reachable}
        return any(server.up and server.name not in known for server in self.servers)

    def learn(self, deployment: Deployment) -> None:
        """What the servers say of themselves by now."""
        self.deployment, self._certain = deployment, bytes_unsure(deployment) is None
        slots = {server.name: server.slots for server in deployment.servers}
        for server in self.servers:
            server.slots = slots.get(server.name, server.slots)

    def step(self, t_s: float) -> Frame:
        """After a look at time `t_s`."""
        self._history.add(t_s, by_role(self.servers))
        said = self.deployment.mode if self.deployment.mode in ("push", "pull") else None
        now, long = (
            read(self._history.window(length_s), self.servers, said, certain=self._certain)
            for length_s in (self._now_s, LONG_S)
        )
        return Frame(self.deployment, self.servers, now, long)
