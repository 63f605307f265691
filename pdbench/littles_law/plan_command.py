"""`pdbench plan`: what a handoff moves and costs, how many instances a load needs. Nothing is measured."""

from __future__ import annotations

import typer

from pdbench.littles_law import plan_compare, plan_crossover, plan_kv, plan_ratio, plan_transfer

plan = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Plan: KV bytes, transfer time, crossover bandwidth, P:D ratio, co-located against P/D.",
)
plan.command("kv")(plan_kv.kv)
plan.command("transfer")(plan_transfer.transfer)
plan.command("crossover")(plan_crossover.crossover)
plan.command("ratio")(plan_ratio.ratio)
plan.command("compare")(plan_compare.compare)
