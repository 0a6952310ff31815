"""What a job holds is that of its processes together."""

import os
import subprocess
import sys

from chaos.targets.resources import resources_of

CHILD = """
import os, sys
kept = bytearray(os.urandom(64 << 20))
fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
print("ready", flush=True)
sys.stdin.read()
"""


def test_children_count_with_their_memory_and_descriptors() -> None:
    before = resources_of(os.getpid())
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == b"ready\n"
        during = resources_of(os.getpid())
        child.stdin.close()
        assert child.wait(20.0) == 0
    assert during.processes == before.processes + 1
    assert during.descriptors >= before.descriptors + 40
    assert during.private_bytes >= before.private_bytes + (64 << 20)
    assert during.proportional_bytes >= during.private_bytes
    assert resources_of(os.getpid()).processes == before.processes
