"""Variable tracing: one chain of assignments in noise, behind a worked example.

Wording and settings: RULER's scripts/data/synthetic/constants.py and variable_tracking.py
(https://github.com/NVIDIA/RULER, Apache-2.0), "assgined" mended.
"""

import random
import string
from functools import partial
from itertools import pairwise

from kvdiag.workloads.ruler.draft import Draft, Request
from kvdiag.workloads.ruler.haystack import NOISE_LINE, Needle, in_lines
from kvdiag.workloads.ruler.needles import depths

_INTRO = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"


def _variables(rng: random.Random, n: int, letters: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < n:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
    return list(names)


def _chain(names: list[str], value: str) -> list[str]:
    first = [f"VAR {names[0]} = {value}"]
    return first + [f"VAR {b} = VAR {a}" for a, b in pairwise(names)]


def _question(value: str) -> str:
    return f"\nQuestion: Find all variables that are assigned the value {value} in the text above."


def _prefix(value: str, n: int) -> str:
    return (
        " Answer: According to the chain(s) of variable assignment in the text above, "
        f"{n} variables are assigned the value {value}, they are:"
    )


def vt(request: Request, n_hops: int = 4) -> Draft:
    """One chain of n_hops assignments behind a worked example with shorter names."""
    rng, n = request.rng(), n_hops + 1
    names = _variables(rng, n, letters=5)
    value, example_value = (str(v) for v in rng.sample(range(10_000, 100_000), 2))
    example_names = _variables(rng, n, letters=3)
    example = (
        _INTRO
        + "\n".join(f"{NOISE_LINE}\n{line}" for line in _chain(example_names, example_value))
        + _question(example_value)
        + _prefix(example_value, n)
        + " "
        + " ".join(example_names)
        + "\n\n"
    )
    # A chain reads in order.
    places = sorted(depths(rng, n))
    needles = [Needle(depth, line, True) for depth, line in zip(places, _chain(names, value), strict=True)]
    return Draft(
        question=_question(value),
        answer_prefix=_prefix(value, n),
        references=tuple(names),
        gold=" ".join(names),
        max_new_tokens=request.max_new_tokens,
        render=partial(in_lines, example + _INTRO, needles, lambda i: NOISE_LINE, False),
    )
