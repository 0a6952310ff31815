"""Where retained memory lies in this process: one region of fixed addresses an allocation.

    reserve      tensors can be built on the addresses; what they hold is scratch memory of this process
    attach       the pool maps retained pages over the same addresses (``leto.memory.client.Pool.obtain``, ``attach_all``)

So a process that may not touch retained memory yet builds everything first and takes over with a few system calls.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from leto.core.errors import RetainedStateError
from leto.core.geometry import Page
from leto.core.layout import Allocation
from leto.device.base import Region
from leto.device.host import HostRegion


class Regions:
    """Allocations by name, each at an address that stays the same until ``close``. Implements RetainedAddresses.

    ``page_bytes`` is the code page size of the job, in which ``page_address`` counts.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._allocations: dict[str, Allocation] = {}
        self._regions: dict[str, Region] = {}

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were reserved."""
        return tuple(self._allocations)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(self._allocations.values())

    def reserve(self, allocations: Iterable[Allocation]) -> None:
        """Addresses for what has none yet. Raises RetainedStateError for a known name of another class or size."""
        for allocation in allocations:
            known = self._allocations.get(allocation.name)
            if known is None:
                self._regions[allocation.name] = HostRegion(allocation.byte_count)
                self._allocations[allocation.name] = allocation
            elif known != allocation:
                raise RetainedStateError(
                    f"{allocation.name!r} is reserved as {known.byte_count} bytes of {known.page_class.value},"
                    f" asked for as {allocation.byte_count} bytes of {allocation.page_class.value}"
                )

    def region(self, name: str) -> Region:
        """Raises RetainedStateError for a name that is not reserved."""
        try:
            return self._regions[name]
        except KeyError:
            raise RetainedStateError(f"{name!r} is not reserved") from None

    def address(self, name: str) -> int:
        return self.region(name).address

    def page_address(self, page: Page) -> int:
        region = self.region(page.allocation)
        offset = page.page_index * self._page_bytes
        assert 0 <= offset < region.byte_count, f"{page} lies outside its allocation"
        return region.address + offset

    def bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A flat, writable view of the whole allocation, valid across attaching. While a view lives, it cannot be closed."""
        region = self.region(name)
        return region.bytes_at(0, region.byte_count)

    def drop(self) -> None:
        """Give back the scratch memory of everything that is not attached: what a warm-up left."""
        for region in self._regions.values():
            region.drop()

    def close(self) -> None:
        """Unmap everything (INV-F). Raises BufferError while views are alive."""
        for region in self._regions.values():
            region.close()
