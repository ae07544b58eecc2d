"""Benchmarks: ours beside Hugging Face PEFT on the same model, batches and start. A time counts only where both compute the same."""
