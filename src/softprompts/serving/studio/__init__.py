"""The studio: pages to see a library, try its prompts, compare them, and tune new ones."""

from .app import build

__all__ = ["build"]
