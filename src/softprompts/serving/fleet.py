"""A fleet: the server's application in many replicas, on Ray Serve.

Ray Serve's proxies take HTTP requests and pass them to the ingress (`ingress.py`), which chooses a
replica by the prompt (`prompt_router.py`) and passes its answer on as it comes. Each replica
(`replica.py`) has the model and the whole application of `server.py`, so keys, limits, logs and
metrics are the same as without Ray.
"""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from ..config.plugins import VARIABLE as PLUGINS
from ..config.serve import ServeSettings
from ..errors import UserError
from .ingress import Ingress
from .keys import Keys
from .prompt_router import COMFORTABLE, PromptRouter
from .replica import Model, Replica

NAME = "softprompts"
"""Of the application on the cluster."""
REPLICAS_OF_AN_INGRESS = 8
STARTS = 3
"""Attempts to start a replica before the fleet cannot start."""
LOGGING = {"enable_access_log": False, "log_level": "WARNING"}
"""Of Ray Serve: the replicas have their own log of requests."""


def application(
    model: Model, settings: ServeSettings, keys: Keys, quiet: bool = False, gpus: int = 0
) -> serve.Application:
    """The fleet as an application for `ray.serve.run`. `gpus`: how many each replica gets."""
    most = max(settings.replicas, settings.max_replicas)
    count: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.max_replicas > settings.replicas:
        count = {
            "autoscaling_config": {
                "min_replicas": settings.replicas,
                "max_replicas": settings.max_replicas,
                "target_ongoing_requests": settings.replica_load,
            }
        }
    common = {
        "graceful_shutdown_timeout_s": settings.grace,
        "graceful_shutdown_wait_loop_s": 0.2,
        "logging_config": LOGGING,
    }
    variables = {PLUGINS: os.environ[PLUGINS]} if PLUGINS in os.environ else {}
    resources = {"num_cpus": settings.replica_cpus, "num_gpus": gpus}
    replica = serve.deployment(
        Replica,
        max_ongoing_requests=settings.max_queue,
        max_queued_requests=settings.max_queue,
        max_constructor_retry_count=STARTS,
        health_check_period_s=5,
        request_router_config=RequestRouterConfig(
            request_router_class=PromptRouter,
            request_router_kwargs={"comfortable": min(COMFORTABLE, settings.replica_load)},
        ),
        ray_actor_options={**resources, "runtime_env": {"env_vars": variables}},
        **count,
        **common,
    )
    ingress = serve.deployment(
        Ingress,
        num_replicas=math.ceil(most / REPLICAS_OF_AN_INGRESS),
        max_ongoing_requests=2 * most * settings.max_queue,
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    return ingress.bind(replica.bind(model, settings, keys, quiet), settings, keys, quiet)


@contextmanager
def deployed(fleet: serve.Application, host: str, port: int) -> Iterator[int]:
    """Run a fleet on the cluster that Ray is connected to; yields how many prompts it serves.

    At the end, the replicas finish what they have, and Ray Serve is shut down.
    """
    if serve.status().proxies:
        raise UserError(
            "Ray Serve is already running on this cluster; stop it with `serve shutdown`, or use "
            "another cluster."
        )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": host, "port": port}, logging_config=LOGGING)
    try:
        try:
            serve.run(fleet, name=NAME)
        except RuntimeError:
            raise UserError(f"The replicas cannot start: {_why()}") from None
        replicas = serve.get_deployment_handle(Replica.__name__, NAME)
        yield replicas.prompts.remote().result()
        serve.delete(NAME)  # while the proxies still pass answers on
    finally:
        serve.shutdown()


def _why() -> str:
    """The last line of what Ray Serve knows about the failure."""
    status = serve.status().applications[NAME]
    messages = [d.message for d in status.deployments.values() if d.message] or [status.message]
    lines = [line.strip() for line in messages[0].splitlines() if line.strip()]
    message = lines[-1] if lines else "Ray Serve gives no reason."
    return message.removeprefix(f"{UserError.__module__}.{UserError.__name__}: ")
