"""`pdbench testbed`: start the SIMULATED deployment, say where it is, and wait for Ctrl-C."""

from typing import Annotated

import typer

from pdbench.testbed.settings import Settings

_D = Settings()
