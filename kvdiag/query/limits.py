"""Memory that a query may take: what DuckDB counts, and a bound on the process for what it does not count."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvdiag.errors import UsageError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
# Address space that threads and their heaps reserve without using it: about 1 GB on two cores, 30 MB more a core.
_RESERVED = 1_500_000_000
_RESERVED_PER_CORE = 32_000_000


def parse_size(text: str) -> int:
    """Bytes of `2GB`, `512 MiB` and the like. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 10**7:
        raise UsageError(f"--memory {text}: must be a size of 10MB or more, as 512MB or 2GB")
    return size


@contextmanager
def address_space(memory: int) -> Iterator[None]:
    """Allow this process `memory` bytes beyond what it has now, and put the old limit back at the end.

    DuckDB does not count all it allocates (a string of gigabytes, an Arrow table); an allocation beyond this bound
    fails, and the failure is an exception. Where the system has no such limit, nothing happens.
    """
    size = _virtual_size()
    if size is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = size + memory + _RESERVED + _RESERVED_PER_CORE * (os.cpu_count() or 1)
    bounds = [b for b in (bound, soft, hard) if b != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _virtual_size() -> int | None:
    """Bytes of address space in use; None where the system does not say (only Linux bounds it in earnest)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
