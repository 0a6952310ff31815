"""What the processes of a job hold: a job that recovers often must not grow."""

from __future__ import annotations

from pathlib import Path

import psutil

from chaos.targets.base import Resources

_SHM = Path("/dev/shm")


def resources_of(pid: int) -> Resources:
    """Of the process and everything below it; one of them that ends meanwhile counts for nothing.

    Raises ProcessLookupError when there is no such process.
    """
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise ProcessLookupError(f"no process {pid}") from None
    processes = descriptors = private = proportional = 0
    for process in (root, *root.children(recursive=True)):
        try:
            with process.oneshot():
                memory, fds = process.memory_full_info(), process.num_fds()
        except psutil.NoSuchProcess:  # a zombie among them
            continue
        processes, descriptors = processes + 1, descriptors + fds
        private, proportional = private + memory.uss, proportional + memory.pss
    shm = [file.stat().st_size for file in _SHM.iterdir() if file.is_file()] if _SHM.is_dir() else []
    return Resources(
        processes=processes,
        descriptors=descriptors,
        private_bytes=private,
        proportional_bytes=proportional,
        shm_files=len(shm),
        shm_bytes=sum(shm),
    )
