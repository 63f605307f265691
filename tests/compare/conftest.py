"""pdbench as a process and testbeds to run it on, as the tests of the command line have them."""

from tests.cli.conftest import pdbench, testbed

__all__ = ["pdbench", "testbed"]
