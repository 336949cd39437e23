"""RULER's 13 tasks, at any length.

Task shapes, wording and settings follow RULER (https://github.com/NVIDIA/RULER, Apache-2.0, arXiv:2404.06654).
Texts are made here or read from files; SQuAD and HotpotQA are fetched where no file is given. Length counts
prompt and new tokens with the model's own tokenizer and is approached from below, a unit of the task at a time.
"""

from kvdiag.workloads.ruler.draft import Task, TokenCounter
from kvdiag.workloads.ruler.generate import SELF_CONTAINED, TASKS, generate, prepare, tolerance
from kvdiag.workloads.ruler.haystack import NOISE_LINE
from kvdiag.workloads.ruler.ingredients import Ingredients
from kvdiag.workloads.ruler.needles import NEEDLE

__all__ = [
    "NEEDLE",
    "NOISE_LINE",
    "SELF_CONTAINED",
    "TASKS",
    "Ingredients",
    "Task",
    "TokenCounter",
    "generate",
    "prepare",
    "tolerance",
]
