"""`plan kv`: how large a prompt's KV cache is, on a GPU, in blocks and in descriptors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pdbench.errors import UsageError
from pdbench.littles_law import plan_options as options
from pdbench.littles_law.kv import LAYOUTS, Blocks, KvPool, KvShape
from pdbench.littles_law.plan_text import Plan, Table, binary_size, number, show, size
from pdbench.quantities import count, nbytes, several

DEFAULT_LENS = ("1024", "4096", "16384")

PromptLens = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt-lens", "--prompt-len", metavar="TOKENS,...", help="Prompt lengths. Default 1024,4096,16384."
    ),
]


def kv(
    model: options.Model = None,
    model_config: options.ModelConfig = None,
    kv_dtype: options.KvDtype = "auto",
    tp: options.Tp = 1,
    prompt_lens: PromptLens = None,
    block_size: options.BlockSize = 16,
    layout: options.Layout = "per-layer",
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="SIZE", help="KV memory of one GPU, such as 40GiB: how many prompts fit."),
    ] = None,
    json: options.Json = False,
) -> None:
    """KV cache of a model: bytes a token, a prompt and a GPU, blocks and NIXL descriptors."""
    shape = options.shape_of(model, model_config, kv_dtype, tp)
    lens = several(prompt_lens or DEFAULT_LENS, "--prompt-lens", count)
    options.check_layout(layout)
    held = None if pool is None else KvPool(shape, nbytes(pool, "--pool"), tp, block_size)
    if held is not None and held.rank_bytes < (block := held.sequence_bytes(1)):
        raise UsageError(
            f"--pool {pool} is {held.rank_bytes:,} bytes: one block of {block_size} tokens takes {block:,.0f}.",
            "Give the pool with its unit, such as 40GiB: a bare number is bytes.",
        )
    show(_kv_plan(shape, tp, lens, block_size, layout, held), as_json=json, html=None)


def _kv_plan(shape: KvShape, tp: int, lens: list[int], block_size: int, layout: str, pool: KvPool | None) -> Plan:
    longest = max(lens)
    answer = f"{shape.model} keeps {binary_size(shape.bytes_per_token)} of KV cache a token"
    if shape.growing_bytes_per_token < shape.bytes_per_token:
        answer += f" ({binary_size(shape.growing_bytes_per_token)} past its windows)"
    answer += f": a prompt of {longest:,} tokens is {binary_size(shape.bytes_for(longest))}"
    answer += f" ({size(shape.bytes_for(longest))})"
    answer += f", {binary_size(shape.rank_bytes(longest, tp))} on each of {tp} GPUs." if tp > 1 else "."
    counted = [shape.in_blocks(tokens, block_size, tp, layout) for tokens in lens]
    rows, documents = [], []
    for tokens, blocks in zip(lens, counted, strict=True):
        fits = "" if pool is None else f"{pool.sequences(tokens):,}"
        sizes = (binary_size(shape.bytes_for(tokens)), binary_size(blocks.rank_bytes))
        rows.append((f"{tokens:,}", *sizes, f"{blocks.blocks:,}", f"{blocks.descriptors:,}", *([fits] if pool else [])))
        documents.append(_kv_document(shape, tokens, tp, blocks, pool))
    heads = ("prompt", "KV bytes", "a GPU, in blocks", "blocks", "descriptors", *(["fit"] if pool else []))
    title = f"TP {tp}, blocks of {block_size} tokens, {LAYOUTS[layout]}"
    document = {
        "model": shape.model,
        "bytes_per_token": shape.bytes_per_token,
        "growing_bytes_per_token": shape.growing_bytes_per_token,
        "rank_bytes_per_token": shape.rank_bytes_per_token(tp),
        "replication": shape.replication(tp),
        "state_layers": shape.state_layers,
        "tp": tp,
        "block_tokens": block_size,
        "layout": layout,
        "prompts": documents,
    }
    return Plan(answer, (Table(title, heads, tuple(rows)),), tuple(_kv_remarks(shape, tp, counted)), document)


def _kv_document(shape: KvShape, tokens: int, tp: int, blocks: Blocks, pool: KvPool | None) -> dict[str, Any]:
    document = {
        "tokens": tokens,
        "bytes": shape.bytes_for(tokens),
        "rank_bytes": shape.rank_bytes(tokens, tp),
        "wire_bytes": shape.wire_bytes(tokens, tp),
        "blocks": blocks.blocks,
        "rank_bytes_in_blocks": blocks.rank_bytes,
        "descriptors": blocks.descriptors,
        "descriptor_bytes": [blocks.smallest_descriptor_bytes, blocks.largest_descriptor_bytes],
    }
    return document if pool is None else {**document, "sequences_in_pool": pool.sequences(tokens)}


def _kv_remarks(shape: KvShape, tp: int, counted: list[Blocks]) -> list[str]:
    remarks = []
    if shape.replication(tp) > 1:
        remarks.append(
            f"At TP {tp} each KV head lies on {number(shape.replication(tp))} GPUs, and crosses that many links."
        )
    for group in shape.groups:
        if group.window_tokens is not None:
            remarks.append(
                f"{group.layers} of {shape.layers} attention layers keep only the last {group.window_tokens:,} tokens."
            )
    if shape.state_layers:
        remarks.append(
            f"{shape.state_layers} recurrent layers keep a fixed state a sequence, which is not counted here."
        )
    small, large = min(b.smallest_descriptor_bytes for b in counted), max(b.largest_descriptor_bytes for b in counted)
    span = binary_size(small) if small == large else f"{binary_size(small)} to {binary_size(large)}"
    remarks.append("Sizes are in powers of 1,024, as memory is counted; links are counted in powers of 1,000 (GB).")
    remarks.append(f"A descriptor moves {span} where no two blocks lie beside each other; fewer where they do.")
    return remarks
