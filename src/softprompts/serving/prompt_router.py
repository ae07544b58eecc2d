"""Which replica of a fleet answers a request: the one where its prompt is warm.

Every prompt has its own order of the replicas (rendezvous hashing, Thaler & Ravishankar 1998), so
its requests meet at one replica, which has its vectors and prefix cached. When a replica starts or
stops, only the prompts of that replica move. A replica that has much more to do than the others is
passed over (bounded loads, Mirrokni et al. 2018), so one busy prompt is served by many replicas.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

COMFORTABLE = 8
"""Requests that a replica may have in progress before it is passed over, unless autoscaling aims
for fewer."""
MOST_ABOVE_MEAN = 1.25
"""The load of a replica, divided by the mean, above which it is passed over."""


def ranked(prompt: str, replicas: Collection[str]) -> list[str]:
    """A prompt's own order of the replicas."""

    def weight(replica: str) -> bytes:
        return hashlib.blake2b(f"{prompt}\0{replica}".encode(errors="replace")).digest()

    return sorted(replicas, key=weight)


def preferences(
    prompt: str | None,
    loads: Mapping[str, int],
    avoid: Sequence[str] = (),
    comfortable: int = COMFORTABLE,
) -> list[list[str]]:
    """Replicas in ranks, the first rank to be tried first; within one, the least loaded is used.

    `loads`: requests in progress by replica. `avoid`: replicas that have refused the request.
    `comfortable`: requests that a replica may have before it is passed over.
    """
    fresh = [replica for replica in loads if replica not in avoid] or list(loads)
    if prompt is None or not fresh:
        return [fresh]
    mean = (sum(loads.values()) + 1) / len(loads)
    most = max(comfortable, MOST_ABOVE_MEAN * mean)
    order = ranked(prompt, fresh)
    warm = next((replica for replica in order if loads[replica] < most), order[0])
    return [[warm], [replica for replica in order if replica != warm]]


class PromptRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Routes the requests of an ingress. Their first argument says where to: see `Forwarded`."""

    comfortable = COMFORTABLE

    def initialize_state(self, comfortable: int = COMFORTABLE) -> None:
        """Called by Ray Serve with the settings of a fleet."""
        self.comfortable = comfortable

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        lengths = self.replica_queue_len_cache
        loads = {name: lengths.get(r.replica_id) or 0 for name, r in replicas.items()}
        request: Any = pending_request.args[0] if pending_request and pending_request.args else None
        prompt, avoid = getattr(request, "prompt", None), getattr(request, "avoid", ())
        ranks = preferences(prompt, loads, avoid, self.comfortable)
        return [[replicas[name] for name in rank] for rank in ranks]
