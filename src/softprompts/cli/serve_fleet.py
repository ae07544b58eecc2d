"""`softprompts serve --ray`: the server in replicas on a Ray cluster."""

import argparse
import contextlib
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ..config.serve import ServeSettings
from ..errors import UserError, setting
from ..serving.keys import Keys
from ..serving.logs import JsonLog

EXTRA = "ray"
"""Of the package, with Ray Serve."""
ONLY_HERE = ("replicas", "max_replicas", "replica_load", "replica_cpus")
"""Settings of a fleet."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def check_fleet(ray: str | None, settings: ServeSettings, given: Collection[str]) -> None:
    """Refuse flags that do not go together, and a missing package. `given`: settings by name."""
    if ray is None:
        for name in (name for name in ONLY_HERE if name in given):
            raise UserError(f"{setting(name)} needs --ray, which starts replicas on a Ray cluster.")
        return
    if settings.studio:
        raise UserError(
            "The studio needs a server without --ray; leave out --studio, or start a second server."
        )
    if 0 < settings.max_replicas < settings.replicas:
        raise UserError(
            f"--max-replicas {settings.max_replicas} is less than --replicas {settings.replicas}; "
            "raise it, or leave it out."
        )
    if importlib.util.find_spec("ray") is None:
        raise _not_installed()


def _not_installed() -> UserError:
    return UserError(f"Ray Serve is not installed; run pip install 'softprompts[{EXTRA}]'.")


def shortage_of(resources: Mapping[str, float], settings: ServeSettings, gpus: int) -> str | None:
    """What a cluster lacks for all replicas, if anything; Ray waits until it is there."""
    for kind, each in (("GPU", gpus), ("CPU", settings.replica_cpus)):
        total, needed = resources.get(kind, 0), settings.replicas * each
        if needed > total:
            return (
                f"The cluster has too few {kind}s: {total:g}, but --replicas {settings.replicas} "
                f"needs {needed:g}; add machines, or lower --replicas."
            )
    return None


def serve_fleet(
    options: argparse.Namespace,
    settings: ServeSettings,
    folders: Sequence[Path],
    keys: Keys,
    model: str,
    address: tuple[str, int],
    announce: Callable[[str, int], None],
) -> int:
    """Serve until SIGTERM or Ctrl-C, which let the replicas finish what they have."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every line of the log counts
    try:
        from ..serving.fleet import application, deployed
        from ..serving.replica import Model
    except ImportError:
        raise _not_installed() from None
    from ..study.ray_cluster import cluster

    path = Path(model)
    source = Model(
        str(path.resolve()) if path.is_dir() else model,
        tuple(folder.resolve() for folder in folders),
        options.dtype,
        options.device,
        options.trust_remote_code,
    )
    _interrupt_on_stop()
    try:
        with cluster(options.ray, EXTRA, log_to_driver=True) as ray:
            _interrupt_on_stop()  # instead of what Ray does on SIGTERM
            resources = ray.cluster_resources()
            gpus = int(options.device != "cpu" and resources.get("GPU", 0) > 0)
            if shortage := shortage_of(resources, settings, gpus):
                if options.ray == "local":
                    raise UserError(shortage)
                JsonLog().warn("waiting", message=shortage)
            fleet = application(source, settings, keys, options.quiet, gpus)
            with deployed(fleet, *address) as prompts:
                announce(model, prompts)
                with contextlib.suppress(KeyboardInterrupt):
                    while True:
                        time.sleep(60)  # on Windows, Ctrl-C does not end the wait for an event
    except (KeyboardInterrupt, SystemExit):  # before it serves; SystemExit while Ray starts
        pass
    return 0


def _interrupt_on_stop() -> None:
    """SIGTERM and Ctrl-C raise KeyboardInterrupt from now on."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)
