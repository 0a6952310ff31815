"""Which row of instructions a job's kernels compute with, as the runtime says it."""

from leto.device.rows import kernel_row

__all__ = ["kernel_row"]
