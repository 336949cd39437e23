"""A tiny model with a tokenizer of its own, saved as `kvdiag build --model FOLDER` reads it."""

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from kvdiag.workloads import ruler
from tests.tiny import tiny_model

MAX_POSITIONS = 1024
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHAT_WITH_BOS = "{{ bos_token }}" + CHAT


def _words(source: Any) -> int:
    return len((source.context + source.question + source.answer_prefix).split())


@cache
def _trained() -> str:
    """A byte-level BPE that knows RULER's words, so that a short length holds a whole task."""
    counts = dict.fromkeys(("niah_single_1", "niah_multikey_1", "vt"), 3)
    sources = ruler.generate("ruler_300", 300, counts, 0, _words, ingredients=ruler.Ingredients("noise"))
    texts = [s.context + s.question + s.answer_prefix for s in sources]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(template: str | None = CHAT, writes_bos: bool = False) -> Any:
    """template: chat template or None. writes_bos: whether the post-processor puts <s> first."""
    tokenizer = Tokenizer.from_str(_trained())
    if writes_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def save_model(folder: Path, broken: bool = False) -> Path:
    """A model folder. broken: the output layer is NaN, so no answer is finite."""
    tokenizer = tiny_tokenizer()
    model = tiny_model("llama")
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if broken:
        model.lm_head.weight.data.fill_(float("nan"))
    model.config.max_position_embeddings = MAX_POSITIONS
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
