"""T5 pretraining from raw text on one GPU: a tokenizer, a model folder, and everything that says how they came to be."""
