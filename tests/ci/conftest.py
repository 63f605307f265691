"""Testbeds, as the tests of the command line start them."""

from tests.cli.conftest import testbed

__all__ = ["testbed"]
