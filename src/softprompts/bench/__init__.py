"""Benchmarks against Hugging Face PEFT on the same model, batches and initial prompt.

A time counts only if both sides compute the same.
"""
