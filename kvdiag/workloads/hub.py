"""Data files fetched from the Hugging Face Hub, each at a pinned revision, kept in the library's cache."""

from pathlib import Path

from kvdiag.errors import UsageError
from kvdiag.network import hub_reachable


def fetch(repo: str, filename: str, revision: str) -> Path:
    """Local path of a data set's file. Raises UsageError that names the Hub repository and the way out offline."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(
            hf_hub_download(
                repo_id=repo,
                filename=filename,
                revision=revision,
                repo_type="dataset",
                local_files_only=not hub_reachable(),
            )
        )
    except Exception as error:  # the library's own errors, the operating system's and the HTTP client's: no base
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise UsageError(
            f"{filename} of the Hub data set {repo} (revision {revision[:12]}) cannot be fetched ({reason}); "
            "without a network give your own copy: --file PATH"
        ) from error
