"""Prompts as task embeddings: which trained prompt is nearest to a new task's."""
