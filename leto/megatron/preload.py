"""What a process does before it can train or fork trainers: settings, imports, and the text."""

from __future__ import annotations

import os
from collections.abc import Mapping

from leto.core.errors import JobError

TRAINER_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}
"""Environment of every process that trains or forks trainers, set by whoever starts it.

Thread pools read theirs when numpy or torch is first imported, so it cannot be set from inside. One thread a rank, because a
pool that exists before a fork is broken after it, and because summation order is part of the result. gloo otherwise resolves
the host name, which need not lead to an interface that is up. An expert gets another number of tokens in every iteration, and
oneDNN generates code for each such shape of a bf16 product; oneDNN and torch's wrapper of it keep 1024 of them each, which
takes a rank of olmoe-tiny from 0.3 to 1.15 GB within 60 iterations. 256 take it to 0.65 GB, for about a tenth more processor
time. A product is the same bits whether its code was kept or made again.
"""


def preload() -> None:
    """Import torch, the shim and all of Megatron that a trainer uses, and map the training text, made on first use.

    A forked child then needs no import. Creates no process group and runs no backward pass. Raises JobError when the process
    has more than one thread afterwards: children of such a fork hang in the first parallel region.
    """
    import torch
    import torch._dynamo  # the first optimizer imports it lazily, which takes 0.6 s

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    from leto.megatron import corpus, retained  # noqa: F401  (retained imports all of training)

    corpus.shakespeare()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        wanted = " ".join(f"{key}={value}" for key, value in TRAINER_ENVIRONMENT.items())
        raise JobError(f"{threads} threads after the imports of a trainer, expected 1: start the process with {wanted}")
