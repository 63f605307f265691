"""The options that name a deployment, for the verbs that look at one: the same words and the same help everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Texts = list[str] | None
TARGET = "What is measured"

Proxy = Annotated[Texts, typer.Option(metavar="URL", help="The proxy that takes the requests.", rich_help_panel=TARGET)]
Prefill = Annotated[Texts, typer.Option(metavar="URL", help="A prefill server; repeatable.", rich_help_panel=TARGET)]
Decode = Annotated[Texts, typer.Option(metavar="URL", help="A decode server; repeatable.", rich_help_panel=TARGET)]
Colocated = Annotated[
    Texts, typer.Option(metavar="URL", help="A co-located server; repeatable.", rich_help_panel=TARGET)
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", help="A deployment from a TOML file.", rich_help_panel=TARGET)
]
Engine = Annotated[str | None, typer.Option(help="vllm, dynamo, sglang; guessed.", rich_help_panel=TARGET)]
Mode = Annotated[str | None, typer.Option(help="pull, push or colocated; guessed.", rich_help_panel=TARGET)]
Model = Annotated[str | None, typer.Option(help="Served model; asked of the server.", rich_help_panel=TARGET)]
MaxNumSeqs = Annotated[
    int | None, typer.Option(min=1, help="Slots of each decode (or co-located) server.", rich_help_panel=TARGET)
]
MetricsUrl = Annotated[
    Texts,
    typer.Option(metavar="SERVER=URL", help="Where a page is elsewhere: decode-0=http://...", rich_help_panel=TARGET),
]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Variable that holds the API key.", rich_help_panel=TARGET)]
ApiKeyFile = Annotated[Path | None, typer.Option(help="File that holds it.", rich_help_panel=TARGET)]
