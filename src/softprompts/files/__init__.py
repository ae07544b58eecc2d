"""Files that are whole or not there, and locks."""

from .atomic import *  # noqa: F403
