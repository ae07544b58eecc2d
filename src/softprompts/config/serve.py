"""The settings of `softprompts serve`. No torch: --help is instant."""

from dataclasses import dataclass

from .schema import Settings, option


@dataclass(frozen=True)
class ServeSettings(Settings):
    """Where the server listens, who may use it, and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 also accepts other machines."""

    port: int = option(8000, minimum=0, maximum=65535)
    """Port to listen on; 0 picks a free one."""

    api_keys: str = ""
    """File of API keys, one per line, each optionally followed by the only prompts it may use;
    SOFTPROMPTS_API_KEYS may hold more keys."""

    open: bool = False
    """Allow serving other machines without API keys."""

    studio: bool = False
    """Also serve the studio at /studio: pages to browse, try, compare and tune prompts."""

    studies: str = "runs"
    """Folder of studies that the studio shows."""

    max_queue: int = option(1024, minimum=1)
    """Maximum number of texts in the queue; more are refused with status 429."""

    latency: float = option(500.0, exclusiveMinimum=0)
    """Target time of one forward pass, in milliseconds; batch sizes adapt to it."""

    batch_rows: int = option(256, minimum=1)
    """Maximum number of texts in one forward pass."""

    slots: int = option(128, minimum=1)
    """Maximum number of answers generated at the same time."""

    timeout: float = option(60.0, exclusiveMinimum=0)
    """Seconds after which a request times out."""

    min_priority: int = 0
    """Lowest priority value that clients may set; requests with lower values are answered first."""

    grace: float = option(30.0, minimum=0)
    """Seconds allowed for finishing accepted requests after SIGTERM."""

    max_body: float = option(4.0, exclusiveMinimum=0)
    """Maximum size of a request, in MiB."""

    max_inputs: int = option(256, minimum=1)
    """Maximum number of texts in a request."""

    max_characters: int = option(100_000, minimum=1)
    """Maximum number of characters in a text."""

    max_tokens: int = option(512, minimum=1)
    """Maximum number of tokens in an answer."""

    max_choices: int = option(16, minimum=1)
    """Maximum number of answers to one text (n)."""

    device_memory: int = option(256, minimum=1)
    """MiB for prompt vectors on the model's device."""

    memory: int = option(1024, minimum=1)
    """MiB for loaded prompts in CPU memory."""

    prefix_memory: int = option(1024, minimum=0)
    """MiB for the cached keys and values of prompts (decoder-only models)."""

    cache_memory: int = option(8192, minimum=1)
    """MiB for the keys and values of answers being generated."""

    metric_prompts: int = option(100, minimum=0, maximum=10_000)
    """Number of prompts with their own label in /metrics; all others share the label other."""

    log_texts: bool = False
    """Also log the texts of requests and answers."""

    replicas: int = option(1, minimum=1)
    """With --ray: number of replicas, each with its own copy of the model."""

    max_replicas: int = option(0, minimum=0)
    """With --ray: add replicas under load, up to this number; 0 adds none."""

    replica_load: int = option(32, minimum=1)
    """With --ray and --max-replicas: target number of requests in progress per replica."""

    replica_cpus: float = option(1.0, minimum=0)
    """With --ray: CPUs per replica. Each replica also gets a GPU if the cluster has any."""
