"""T5 pretraining from raw text on one GPU, with its tokenizer and a card on how it was made."""
