"""Serving: many tuned prompts on one frozen model, in Python and over HTTP.

Import from the modules: `client`, `keys` and `logs` need no torch.
"""
