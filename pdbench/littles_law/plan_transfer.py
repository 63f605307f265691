"""`plan transfer`: how long one prompt's KV cache is on the way, and how much of that a prompt waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pdbench.littles_law import plan_options as options
from pdbench.littles_law.kv import KvShape
from pdbench.littles_law.links import LINKS, Link
from pdbench.littles_law.plan_text import Plan, Table, ms, number, percent, show, size
from pdbench.littles_law.transfer import POST_US_PER_DESCRIPTOR, Exposure, Transfer, exposures, streaming_pays

ASSUMED_LINK = "ndr"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that is handed over. `run_blocks` `None`: how many blocks lie beside each other is not known."""

    shape: KvShape
    tokens: int
    tp: int
    descriptors: int
    run_blocks: float | None
    fixed_ms: float
    post_us: float
    prefill_ms: float | None
    chunks: int
    step_ms: float
    proxy_ms: float

    def over(self, gb_s: float) -> Transfer:
        asked = self.descriptors / self.run_blocks if self.run_blocks else 0.0
        return Transfer(self.shape.rank_bytes(self.tokens, self.tp), gb_s, self.fixed_ms, asked, self.post_us)

    @property
    def scattered_post_ms(self) -> float:
        return self.descriptors * self.post_us / 1000


def transfer(
    model: options.Model = None,
    model_config: options.ModelConfig = None,
    kv_dtype: options.KvDtype = "auto",
    tp: options.Tp = 1,
    prompt_len: Annotated[
        int, typer.Option("--prompt-len", min=1, help="Tokens of the prompt.", rich_help_panel=options.LOAD)
    ] = 16000,
    link: options.LinkName = None,
    link_gb_s: options.LinkSpeed = None,
    t0_ms: Annotated[
        float,
        typer.Option("--t0-ms", help="Fixed cost of a transfer; 0.4 to 1.8 on RDMA.", rich_help_panel=options.HANDOFF),
    ] = 0.0,
    block_size: options.BlockSize = 16,
    layout: options.Layout = "per-layer",
    run_blocks: Annotated[
        float | None,
        typer.Option(
            "--run-blocks",
            min=1,
            help="Mean run of adjacent blocks sent as one. Default: not known.",
            rich_help_panel=options.HANDOFF,
        ),
    ] = None,
    post_us: Annotated[
        float, typer.Option("--post-us", help="Posting one descriptor.", rich_help_panel=options.HANDOFF)
    ] = POST_US_PER_DESCRIPTOR,
    prefill_ms: Annotated[
        float | None,
        typer.Option(
            "--prefill-ms",
            help="This prompt's prefill, for what per-layer push hides.",
            rich_help_panel=options.ENGINES,
        ),
    ] = None,
    prefill_chunks: Annotated[
        int, typer.Option("--prefill-chunks", min=1, help="Chunks of that prefill.", rich_help_panel=options.ENGINES)
    ] = 1,
    step_ms: Annotated[
        float,
        typer.Option(
            "--step-ms", help="A decode step: completion is seen between steps.", rich_help_panel=options.ENGINES
        ),
    ] = 0.0,
    proxy_ms: Annotated[
        float,
        typer.Option("--proxy-ms", help="The proxy's round trip that pull pays.", rich_help_panel=options.ENGINES),
    ] = 0.0,
    json: options.Json = False,
) -> None:
    """Transfer time of one prompt's KV cache, link by link; what pull, push and per-layer push expose."""
    shape = options.shape_of(model, model_config, kv_dtype, tp)
    options.check_layout(layout)
    for value, name in ((t0_ms, "--t0-ms"), (post_us, "--post-us"), (step_ms, "--step-ms"), (proxy_ms, "--proxy-ms")):
        options.not_negative(value, name)
    if prefill_ms is not None:
        options.above_zero(prefill_ms, "--prefill-ms")
    descriptors = shape.in_blocks(prompt_len, block_size, tp, layout).descriptors
    prompt = Prompt(shape, prompt_len, tp, descriptors, run_blocks, t0_ms, post_us, prefill_ms, prefill_chunks,
                    step_ms, proxy_ms)  # fmt: skip
    show(transfer_plan(prompt, options.link_of(link, link_gb_s)), as_json=json, html=None)


def transfer_plan(prompt: Prompt, chosen: Link | None) -> Plan:
    link = chosen or LINKS[ASSUMED_LINK]
    links = [chosen] if chosen else list(LINKS.values())
    one = prompt.over(link.practical_gb_s)
    ways = exposures(one, prompt.shape.layers, prompt.prefill_ms, prompt.chunks, prompt.step_ms, prompt.proxy_ms)
    moved = prompt.shape.wire_bytes(prompt.tokens, prompt.tp)
    answer = f"{size(moved)} take {ms(one.fixed_ms + one.wire_ms)} over {link.what}" if link.what != "as given" else (
        f"{size(moved)} take {ms(one.fixed_ms + one.wire_ms)} at {link.name} a GPU"
    )  # fmt: skip
    answer += f" ({prompt.tokens:,} tokens of {prompt.shape.model}, TP {prompt.tp})"
    streamed = next((way for way in ways if way.way == "push per layer"), None)
    answer += f", and {ms(one.post_ms)} to post" if prompt.run_blocks else ""
    answer += "." if streamed is None else f"; layer by layer {percent(streamed.hidden_fraction)} of it is hidden."
    tables = (_links_table(prompt, links), _ways_table(ways, link))
    return Plan(answer, tables, tuple(_remarks(prompt, one, streamed)), _document(prompt, links, one, ways, link))


def _links_table(prompt: Prompt, links: list[Link]) -> Table:
    rows = []
    for link in links:
        at_line, reached = prompt.over(link.line_gb_s), prompt.over(link.practical_gb_s)
        known = link.reached is not None
        rows.append(
            (link.name, number(link.line_gb_s), number(link.practical_gb_s) if known else "-",
             percent(link.practical_fraction), ms(at_line.total_ms), ms(reached.total_ms) if known else "-")
        )  # fmt: skip
    heads = ("link", "GB/s line", "reached", "of line", "at line", "as reached")
    each = size(prompt.shape.rank_bytes(prompt.tokens, prompt.tp))
    return Table(f"t0 + bytes/bandwidth + descriptors, {each} a GPU", heads, tuple(rows))


def _ways_table(ways: list[Exposure], link: Link) -> Table:
    rows = tuple(
        (way.way, ms(way.exposed_ms), percent(way.hidden_fraction), ms(way.stalls_decode_ms), way.explained)
        for way in ways
    )
    return Table(f"What a prompt waits for ({link.name})", ("way", "exposed", "hidden", "stalls decode", ""), rows)


def _remarks(prompt: Prompt, one: Transfer, streamed: Exposure | None) -> list[str]:
    count = f"{prompt.descriptors:,} descriptors a GPU"
    if prompt.run_blocks is None:
        said = f"Posting is not in these times: {count} take 0 to {ms(prompt.scattered_post_ms)} of one thread, "
        remarks = [said + "the more the more scattered the blocks (--run-blocks N counts it)."]
    else:
        remarks = [f"Posting: {number(one.descriptors)} of {count} after merging take {ms(one.post_ms)} of one thread."]
    if streamed is None:
        remarks.append("What per-layer push hides needs the prompt's prefill time: --prefill-ms.")
        return remarks
    layers, hidden_ms = (
        prompt.shape.layers,
        streamed.hidden_fraction * (one.wire_ms + one.post_ms),
    )
    if layers > 1:
        remarks.append(
            f"Sending {layers} pieces pays while each one more costs less than {ms(hidden_ms / (layers - 1))}."
        )
    piece = prompt.prefill_ms / prompt.chunks / layers if prompt.prefill_ms else 0.0
    if not streaming_pays(layers, piece, one.wire_ms / layers, one.fixed_ms):
        remarks.append(f"If each piece costs t0 ({ms(one.fixed_ms)}) anew, per-layer push is slower than one transfer.")
    return remarks


def _document(prompt: Prompt, links: list[Link], one: Transfer, ways: list[Exposure], link: Link) -> dict[str, Any]:
    return {
        "model": prompt.shape.model,
        "tokens": prompt.tokens,
        "tp": prompt.tp,
        "bytes": prompt.shape.bytes_for(prompt.tokens),
        "wire_bytes": one.rank_bytes * prompt.tp,
        "rank_bytes": one.rank_bytes,
        "t0_ms": prompt.fixed_ms,
        "wire_ms": one.wire_ms,
        "descriptors": prompt.descriptors,
        "post_ms": one.post_ms if prompt.run_blocks else None,
        "post_ms_scattered": prompt.scattered_post_ms,
        "total_ms": one.total_ms,
        "link": link.name,
        "links": [
            {
                "link": each.name,
                "what": each.what,
                "line_gb_s": each.line_gb_s,
                "reached_gb_s": each.reached,
                "practical_fraction": each.practical_fraction,
                "source": each.source,
                "total_ms_at_line": prompt.over(each.line_gb_s).total_ms,
                "total_ms": prompt.over(each.practical_gb_s).total_ms,
            }
            for each in links
        ],
        "ways": [
            {
                "way": way.way,
                "exposed_ms": way.exposed_ms,
                "hidden_fraction": way.hidden_fraction,
                "stalls_decode_ms": way.stalls_decode_ms,
            }
            for way in ways
        ],
    }
