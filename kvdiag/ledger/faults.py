"""Named moments of a write, where a crash test stops the program or fills the disk. Else they do nothing."""

from collections.abc import Callable

# Called with `<folder>/<file>:<moment>`; set by tests only.
hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """A moment at which a crash would find the disk in a state of its own."""
    if hook is not None:
        hook(name)
