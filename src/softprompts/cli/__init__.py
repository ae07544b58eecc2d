"""The command line: one module per command. Nothing else in the package imports it."""

from .main import main

__all__ = ["main"]
