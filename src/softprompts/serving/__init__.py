"""Serving: many tuned prompts on one frozen model."""

from .engine import Engine

__all__ = ["Engine"]
