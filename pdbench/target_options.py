"""The options that name a deployment, for the verbs that look at one: the same words and the same help everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Texts = list[str] | None

Proxy = Annotated[Texts, typer.Option(help="URL of the proxy that takes the requests.")]
Prefill = Annotated[Texts, typer.Option(help="URL of a prefill server; repeatable.")]
Decode = Annotated[Texts, typer.Option(help="URL of a decode server; repeatable.")]
Colocated = Annotated[Texts, typer.Option(help="URL of a co-located server; repeatable.")]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="A deployment from a TOML file.")]
Engine = Annotated[str | None, typer.Option(help="vllm, dynamo, sglang; guessed.")]
Mode = Annotated[str | None, typer.Option(help="pull, push or colocated; guessed.")]
Model = Annotated[str | None, typer.Option(help="Served model; asked of the server.")]
MaxNumSeqs = Annotated[int | None, typer.Option(min=1, help="Slots of each decode (or co-located) server.")]
MetricsUrl = Annotated[Texts, typer.Option(help="SERVER=URL where a page is elsewhere.")]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Variable that holds the API key.")]
ApiKeyFile = Annotated[Path | None, typer.Option(help="File that holds it.")]
