"""Loading models: a Hub id with @revision, a local folder, a GGUF file, or the embedded `smollm2`."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kvdiag.engine.model_files import quiet, resolve
from kvdiag.errors import UsageError, first_line
from kvdiag.network import hub_reachable

# Architectures whose attention layers the replay was proven on (tests/engine/test_equivalence.py).
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
DEFAULT_ATTENTION = "sdpa"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. `name` goes into keys and records; `digest` tells its files apart."""

    name: str
    model: Any
    tokenizer: Any
    stop_ids: frozenset[int]
    dtype: str
    device: str
    attention: str
    digest: str
    tokenizer_digest: str

    @property
    def max_positions(self) -> int:
        """Positions the model was made for."""
        return int(self.model.config.max_position_embeddings)


def resolve_device(device: str) -> str:
    """`auto` is cuda where there is one. Raises UsageError for a device that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device {device}: this PyTorch sees no GPU; use --device cpu")
    try:
        torch.device(device)
    except RuntimeError:
        raise UsageError(f"--device {device}: no such device; use auto, cpu or cuda") from None
    return device


def resolve_dtype(dtype: str, device: str) -> str:
    """`auto` is bfloat16 on a GPU and float32 on a CPU, where it is exact and often as fast."""
    if dtype == "auto":
        return "bfloat16" if device.startswith("cuda") else "float32"
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}: must be auto, {', '.join(DTYPES)}")
    return dtype


def load_model(
    spec: str,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    attention: str = DEFAULT_ATTENTION,
) -> LoadedModel:
    """Load a model and its tokenizer. attention: the backend of its own forwards, as transformers names it.

    A backend other than the default becomes part of the name, and so of every key: runs under two backends never
    pair up.

    Raises UsageError when `spec` is no model, or one that the engine cannot replay (sliding windows, an
    architecture it was not proven on).
    """
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    name, path, options = _located(spec, trust_remote_code)
    with _reading(spec, "cannot be loaded as a model"):
        config = AutoConfig.from_pretrained(path, **options)
        _check_architecture(spec, config)
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=DTYPES[dtype], attn_implementation=attention, **options
        )
    commit = getattr(config, "_commit_hash", None)
    if commit:
        name = f"{name.split('@')[0]}@{commit}"
    if attention != DEFAULT_ATTENTION:
        name += f"[{attention}]"
    model = model.to(device).eval()
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        stop_ids=stop_ids(model),
        dtype=dtype,
        device=device,
        attention=attention,
        digest=commit or _folder_digest(Path(path)),
        tokenizer_digest=_tokenizer_digest(tokenizer),
    )


@dataclass(frozen=True)
class LoadedTokenizer:
    """A model's tokenizer and its positions, without the weights."""

    name: str
    tokenizer: Any
    max_positions: int


def load_tokenizer(spec: str, trust_remote_code: bool = False) -> LoadedTokenizer:
    """The tokenizer of a model. Raises UsageError when `spec` is no model."""
    name, path, options = _located(spec, trust_remote_code)
    with _reading(spec, "has no tokenizer that loads"):
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    positions = load_config(spec, trust_remote_code).max_position_embeddings
    return LoadedTokenizer(name, tokenizer, int(positions))


def load_config(spec: str, trust_remote_code: bool = False) -> Any:
    """The config of a model, of its text part where it has several. Raises UsageError when it cannot be read."""
    _, path, options = _located(spec, trust_remote_code)
    with _reading(spec, "its config cannot be read"):
        config = AutoConfig.from_pretrained(path, **options)
    return getattr(config, "text_config", None) or config


def _located(spec: str, trust_remote_code: bool) -> tuple[str, str, dict[str, Any]]:
    """Name for records, path or Hub id, and what transformers must be told to read it."""
    name, path, revision = resolve(spec)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision:
        options["revision"] = revision
    if not Path(path).exists():  # on the Hub
        options["local_files_only"] = not hub_reachable()
    return name, path, options


@contextmanager
def _reading(spec: str, trouble: str) -> Iterator[None]:
    """transformers at work, without its bars; what goes wrong is one line."""
    try:
        with quiet():
            yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"--model {spec}: {trouble} ({first_line(error)})") from error


def stop_ids(model: Any) -> frozenset[int]:
    """Every stop token of the model: generation config first, then config. There may be several."""
    found: set[int] = set()
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def _check_architecture(spec: str, config: Any) -> None:
    kind = getattr(config, "model_type", "unknown")
    if kind not in ARCHITECTURES:
        raise UsageError(f"--model {spec}: architecture {kind} is not supported; {', '.join(ARCHITECTURES)} are")
    layer_types = getattr(config, "layer_types", None) or []
    sliding = kind == "mistral" and getattr(config, "sliding_window", None)
    if sliding or any(t != "full_attention" for t in layer_types):
        raise UsageError(
            f"--model {spec}: it uses a sliding attention window ({config.sliding_window} positions), which "
            "already drops keys; such models are not supported yet"
        )


def _folder_digest(folder: Path) -> str:
    """Digest of config and weights. Of large files size and both ends count: hashing all would take minutes."""
    digest = hashlib.sha256()
    edge = 1 << 20
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors", ".bin", ".jinja")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(edge))
            if size > 2 * edge:
                file.seek(-edge, os.SEEK_END)
            digest.update(file.read())
    return "sha256-ends:" + digest.hexdigest()


def _tokenizer_digest(tokenizer: Any) -> str:
    state = tokenizer.backend_tokenizer.to_str() + (tokenizer.chat_template or "")
    return hashlib.sha256(state.encode()).hexdigest()
