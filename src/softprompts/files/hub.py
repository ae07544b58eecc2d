"""The Hugging Face hub's client, made quick to fail.

It retries for half a minute where there is no network, and logs every retry. One short probe says
whether the hub can be reached; if not, the client reads its cache alone, and fails at once.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.utils import logging

PROBE_SECONDS = 2.0
RETRY_SECONDS = 60.0
"""How long the hub counts as unreachable before it is probed again."""

_probe: dict[str, float] = {}
"""When the hub was last reached or missed."""


def prepare_hub(name: str) -> None:
    """Before `name` is loaded: hide the client's log, and go offline if the hub is unreachable.

    Nothing is probed for a local path, or where HF_HUB_OFFLINE is set.
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    local = os.path.exists(name) or name.startswith(("/", ".", "~"))  # no hub id starts so
    if local or (constants.HF_HUB_OFFLINE and "missed" not in _probe):
        return
    if "reached" in _probe or time.monotonic() - _probe.get("missed", -1e9) < RETRY_SECONDS:
        return
    reachable = _reachable()
    _probe.clear()
    _probe["reached" if reachable else "missed"] = time.monotonic()
    constants.HF_HUB_OFFLINE = not reachable
    if "datasets" in sys.modules:  # it copies the constant when it is imported
        sys.modules["datasets"].config.HF_HUB_OFFLINE = not reachable


def offline_reason(name: str, what: str) -> str | None:
    """Why a model or dataset cannot be downloaded; None where the hub can be reached."""
    if not constants.HF_HUB_OFFLINE or os.path.exists(name):
        return None
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname
    why = f"{host} cannot be reached" if "missed" in _probe else "HF_HUB_OFFLINE is set"
    return f"{why}, and the {what} is not in the local cache"


def missing_reason(name: str, what: str = "model") -> str | None:
    """Why a model or dataset is neither here nor can be downloaded; None if it may be found.

    It needs neither torch nor `datasets`.
    """
    if name.startswith(("/", ".", "~")):
        return None if os.path.exists(name) else "no such folder"
    prepare_hub(name)
    return None if _cached(name, what) else offline_reason(name, what)


def _cached(name: str, what: str) -> bool:
    """Whether the local caches hold a model's config, or anything of a dataset."""
    if what == "model":
        with contextlib.suppress(ValueError):  # no hub id
            return isinstance(try_to_load_from_cache(name, "config.json"), str)
        return False
    prepared = os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")
    downloaded = os.path.join(constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}")
    return any(map(os.path.exists, (downloaded, os.path.join(prepared, name.replace("/", "___")))))


def _reachable() -> bool:
    """Whether the hub, or the proxy before it, accepts a connection."""
    url = urllib.parse.urlsplit(constants.ENDPOINT)
    if not urllib.request.proxy_bypass(url.hostname or ""):
        proxies = urllib.request.getproxies()
        url = urllib.parse.urlsplit(proxies.get(url.scheme) or proxies.get("all") or url.geturl())
    address = (url.hostname or "", url.port or (80 if url.scheme == "http" else 443))
    reached = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection(address, PROBE_SECONDS).close()
            reached.set()

    # in a thread, because looking up a name has no time limit of its own
    probe = threading.Thread(target=connect, daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return reached.is_set()
