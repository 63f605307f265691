"""What is being measured: roles, servers, URLs, and credentials that cannot be printed.

Flags, `pdbench.toml` and recipes make deployments (`pdbench.recipe`); what the servers say of themselves is added by
`pdbench.probe.discover`. Nothing here does network I/O.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from pdbench.errors import UsageError
from pdbench.route import UNIX, unix_url

ROLES = ("proxy", "prefill", "decode", "colocated", "render")
MODES = ("pull", "push", "colocated")
DEFAULT_TARGET = "default"  # of a run that names none
GUIDE_PORTS = {"proxy": 8192, "prefill": 8100, "decode": 8200}
DEFAULT_PORTS = "default ports"  # the source of a deployment that nobody named: those of the guide, on this host
API_KEY_VARIABLE = "PDBENCH_API_KEY"


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What must never reach a file, a log or an error. `repr` shows nothing; `redact` takes it out of foreign text."""

    api_key: str | None = None
    basic: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # "host:port" -> (user, password)

    def __repr__(self) -> str:
        return "Credentials(***)"

    def headers(self, url: str) -> dict[str, str]:
        """Authorization header for `url`: the user information that its URL carried, else the API key."""
        pair = self.basic.get(urlsplit(url).netloc)
        if pair is not None:
            from base64 import b64encode

            return {"Authorization": "Basic " + b64encode(":".join(pair).encode()).decode()}
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def redact(self, text: str) -> str:
        """`text` with every secret replaced by `***` (a server may echo the header it was sent)."""
        secrets = [self.api_key, *(password for _, password in self.basic.values())]
        secrets += [self.headers(f"http://{netloc}")["Authorization"].split()[1] for netloc in self.basic]
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What one server says of itself. `None` means that it did not say."""

    reachable: bool = False
    engine: str | None = None
    version: str | None = None
    simulated: bool = False
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    has_metrics: bool = False
    block_size: int | None = None
    num_kv_blocks: int | None = None
    prefix_caching: bool | None = None
    connector: str | None = None
    kv_role: str | None = None
    transfer_mode: str | None = None
    dp_ranks: int | None = None
    kv_ranks: int | None = None  # tensor-parallel ranks over which SGLang spreads (or copies) a request's KV
    max_num_seqs: int | None = None
    bootstrap_port: int | None = None  # where SGLang's decode meets this prefill server
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """One HTTP server of the deployment. `name` is the `server` column of metrics.parquet, e.g. `decode-0`."""

    name: str
    role: str
    url: str
    metrics_url: str | None = None
    max_num_seqs: int | None = None
    facts: ServerFacts | None = None
    log: str | None = None  # file or pipe with its log, read beside its page

    @property
    def slots(self) -> int | None:
        """Slots of this server: as given by the user, else as the server says; over its DP ranks."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        if self.facts is None or self.facts.max_num_seqs is None:
            return None
        return self.facts.max_num_seqs * (self.facts.dp_ranks or 1)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One target: its servers and what is known of it."""

    target: str
    servers: tuple[Server, ...]
    engine: str | None = None
    mode: str | None = None
    model: str | None = None
    link_gb_s: float | None = None
    simulated: bool = False
    source: str = ""
    credentials: Credentials = field(default_factory=Credentials)

    def of(self, role: str) -> tuple[Server, ...]:
        return tuple(server for server in self.servers if server.role == role)

    @property
    def entry(self) -> Server:
        """The server that takes the clients' requests."""
        for role in ("proxy", "colocated"):
            if servers := self.of(role):
                return servers[0]
        raise UsageError(
            f"target {self.target!r} has no server that takes requests: neither --proxy nor --server is given.",
            "Add --proxy URL (prefill/decode) or --server URL (co-located).",
        )

    @property
    def front(self) -> Server:
        """The server that a request meets first: the entry, or the first hop's where pdbench itself is the proxy."""
        first = [self.of(role) for role in ("proxy", "colocated", "prefill", "render")]
        return next((servers[0] for servers in first if servers), None) or self.entry

    @property
    def decode_slots(self) -> int | None:
        """Slots of all decode (or co-located) servers together, `None` when one of them is not known."""
        slots = [server.slots for server in self.of("decode") or self.of("colocated")]
        return sum(s for s in slots if s is not None) if slots and None not in slots else None

    def document(self) -> dict[str, Any]:
        """The deployment as stored in run.json: no credentials, nothing that is not known."""
        whole = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("servers", "credentials")}
        servers = [_known(asdict(server)) for server in self.servers]
        return {**_known(whole), "servers": servers}


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _known(value) if isinstance(value, Mapping) else value
        for key, value in record.items()
        if value is not None and value != () and value != ""
    }


def from_document(document: Mapping[str, Any]) -> Deployment:
    """The inverse of `Deployment.document`, for a report made weeks later on another machine."""

    def build_as(kind: Any, record: Mapping[str, Any], **more: Any) -> Any:
        known = {f.name for f in fields(kind)} - more.keys()
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in record.items() if k in known}, **more)

    servers = []
    for record in document["servers"]:
        facts = build_as(ServerFacts, record["facts"]) if "facts" in record else None
        servers.append(build_as(Server, record, facts=facts))
    rebuilt: Deployment = build_as(Deployment, document, servers=tuple(servers), credentials=Credentials())
    return rebuilt


def flags_for(roles: Sequence[str], target: str) -> str:
    """What to type to add the servers of roles: their flags, or the recipe of a named target, which takes none."""
    if target == DEFAULT_TARGET:
        return " ".join(f"--{role} URL" for role in roles)
    return f"--target {target}=RECIPE.toml with its {' and '.join(roles)} servers"


def split_url(text: str, role: str) -> tuple[str, tuple[str, str] | None]:
    """A server's base URL without user information, and that user information. A bare `host:port` means http."""
    text = text.strip()
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme in ("unix", UNIX):
        return _unix_base(parts, role), None
    try:
        port = parts.port
    except ValueError:
        raise UsageError(f"--{role}: the port of the URL is not a number from 0 to 65535.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--{role} wants http://HOST:PORT, not {_harmless(parts)!r}.")
    if parts.query or parts.fragment:
        raise UsageError(f"--{role}: a base URL takes no query.", "Give keys with --api-key-env or --api-key-file.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1")
    user = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return urlunsplit((parts.scheme, netloc, path, "", "")), user


def _unix_base(parts: SplitResult, role: str) -> str:
    """`unix:///run/vllm.sock`, or `http+unix://%2Frun%2Fvllm.sock/base`, as the latter."""
    path = unquote(parts.path if parts.scheme == "unix" else parts.netloc)
    if not path.startswith("/") or (parts.scheme == "unix" and parts.netloc) or parts.query or parts.fragment:
        raise UsageError(f"--{role} wants unix:///PATH/TO/SOCKET, not {urlunsplit(parts)!r}.")
    return unix_url(path) + ("" if parts.scheme == "unix" else parts.path.rstrip("/").removesuffix("/v1"))


def _harmless(parts: SplitResult) -> str:
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def api_key(variable: str | None, file: Path | None) -> str | None:
    """The API key from a file, from the named variable, or from PDBENCH_API_KEY; never from a flag's value."""
    if file is not None:
        try:
            key = file.read_text().strip()
        except OSError as error:
            raise UsageError(f"--api-key-file {file}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise UsageError(
                f"--api-key-file {file} holds bytes that are no text.",
                "A key file is one line of text, the key itself.",
            ) from None
    elif variable is not None:
        if variable not in os.environ:
            raise UsageError(f"--api-key-env {variable}: this variable is not set.", f"export {variable}=...")
        key = os.environ[variable]
    else:
        key = os.environ.get(API_KEY_VARIABLE, "")
    key = key.strip()
    if not key.isprintable() or " " in key:
        raise UsageError("The API key holds white space or control characters.")
    return key or None


def build(
    target: str,
    urls: Iterable[tuple[str, str]],
    *,
    key: str | None = None,
    metrics_urls: Mapping[str, str] | None = None,
    slots: Mapping[str, int] | None = None,
    **known: Any,
) -> Deployment:
    """A deployment from (role, URL) pairs; `metrics_urls` and `slots` by server name, `known` are Deployment fields."""
    servers: list[Server] = []
    basic: dict[str, tuple[str, str]] = {}
    for role, text in urls:
        url, user = split_url(text, "server" if role == "colocated" else role)
        if user is not None:
            basic[urlsplit(url).netloc] = user
        name = f"{role}-{sum(server.role == role for server in servers)}"
        if any(server.url == url for server in servers):
            raise UsageError(f"{url} is given twice.", "Each server has one role.")
        page: str | None = (metrics_urls or {}).get(name, f"{url}/metrics")
        servers.append(Server(name, role, url, None if page == "none" else page, (slots or {}).get(name)))
    if {"proxy", "colocated"} <= {server.role for server in servers}:
        raise UsageError(
            "--proxy and --server are two deployments.",
            "Compare them: --target pd=PROXY_URL --target single=RECIPE.toml.",
        )
    if sum(server.role == "proxy" for server in servers) > 1:
        raise UsageError("One run sends to one proxy.", "Compare two of them: --target a=URL --target b=URL.")
    return Deployment(target, tuple(servers), credentials=Credentials(key, basic), **known)


def with_logs(deployment: Deployment, logs: Mapping[str, str]) -> Deployment:
    """The deployment with the logs of its servers, by name. Raises UsageError for a server that there is not."""
    unknown = set(logs) - {server.name for server in deployment.servers}
    if unknown:
        raise UsageError(f"--{sorted(unknown)[0].split('-')[0]}-log: there is no server {sorted(unknown)[0]}.")
    servers = tuple(replace(server, log=logs.get(server.name, server.log)) for server in deployment.servers)
    return replace(deployment, servers=servers)


def with_slots(deployment: Deployment, decode: int | None, prefill: int | None, *, keep: bool = False) -> Deployment:
    """The deployment with `max_num_seqs` set for its decode (or co-located) and prefill servers; `keep` what is set."""
    wanted = {"decode": decode, "colocated": decode, "prefill": prefill}
    servers = tuple(
        server
        if wanted.get(server.role) is None or (keep and server.max_num_seqs is not None)
        else replace(server, max_num_seqs=wanted[server.role])
        for server in deployment.servers
    )
    return replace(deployment, servers=servers)
