"""What a user can get wrong. Each error is one line that names the thing and its mend."""


class KvdiagError(Exception):
    """Base of all errors shown as one line; `exit_code` as in docs/commands.md."""

    exit_code = 1


class DataError(KvdiagError):
    """A file, record or run is not as it must be."""

    exit_code = 1


class UsageError(KvdiagError):
    """A flag, name or value is wrong."""

    exit_code = 2


class RefusedError(KvdiagError):
    """The request is well formed and is refused, so that nothing is mixed or lost."""

    exit_code = 3


def near_matches(name: str, known: list[str]) -> str:
    """The tail of an "unknown name" message: near matches if any, else all known names."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(known)


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
