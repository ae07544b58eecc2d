"""The Hugging Face hub's client, which logs every retry; one error at the end is enough."""

from huggingface_hub.utils import logging


def silence_hub() -> None:
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
