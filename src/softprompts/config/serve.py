"""The settings of `softprompts serve`. No torch: --help is instant."""

from dataclasses import dataclass

from .schema import Settings, option


@dataclass(frozen=True)
class ServeSettings(Settings):
    """Where the server listens, who may use it, and the bounds that it keeps."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 serves other machines, too."""

    port: int = option(8000, minimum=0, maximum=65535)
    """Port to listen on; 0 picks a free one."""

    api_keys: str = ""
    """File of API keys, one per line, each with the prompts it may use or none for all; more keys
    may be in SOFTPROMPTS_API_KEYS."""

    open: bool = False
    """Serve other machines without API keys."""

    studio: bool = False
    """Also serve the studio at /studio: pages to see, try, compare and tune prompts."""

    studies: str = "runs"
    """Folder of studies that the studio shows."""

    max_queue: int = option(1024, minimum=1)
    """Texts that may wait; more are refused with status 429."""

    latency: float = option(500.0, exclusiveMinimum=0)
    """Milliseconds that one forward pass should take at most; batches are made to fit."""

    batch_rows: int = option(256, minimum=1)
    """Most texts of one forward pass."""

    slots: int = option(128, minimum=1)
    """Most answers that are generated at a time."""

    timeout: float = option(60.0, exclusiveMinimum=0)
    """Seconds after which a request is given up."""

    grace: float = option(30.0, minimum=0)
    """Seconds to finish requests that were taken before SIGTERM."""

    max_body: float = option(4.0, exclusiveMinimum=0)
    """Most MiB of a request."""

    max_inputs: int = option(256, minimum=1)
    """Most texts of a request."""

    max_characters: int = option(100_000, minimum=1)
    """Most characters of a text."""

    max_tokens: int = option(512, minimum=1)
    """Most tokens of an answer."""

    max_choices: int = option(16, minimum=1)
    """Most answers to one text (n)."""

    device_memory: int = option(256, minimum=1)
    """MiB of prompt vectors on the model's device."""

    memory: int = option(1024, minimum=1)
    """MiB of loaded prompts in the CPU's memory."""

    prefix_memory: int = option(1024, minimum=0)
    """MiB of keys and values of prompts that a decoder-only model has read."""

    cache_memory: int = option(8192, minimum=1)
    """MiB of keys and values of the answers that are being generated."""

    metric_prompts: int = option(100, minimum=0, maximum=10_000)
    """Prompts with latencies and counts of their own in /metrics; the rest are counted as other."""

    log_texts: bool = False
    """Log the texts of requests and answers, too."""
