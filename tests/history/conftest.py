"""pdbench as a process, as the tests of the command line run it."""

from tests.cli.conftest import pdbench

__all__ = ["pdbench"]
