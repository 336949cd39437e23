"""The token tree: shared beginnings, visibility, positions."""

from hypothesis import given
from hypothesis import strategies as st

from kvdiag.engine.tree import TokenTree

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(TOKENS, TOKENS, TOKENS)
def test_every_answer_reads_as_its_own_sequence(prompt, first, second):
    tree = TokenTree(prompt)
    for answer in (first, second):
        nodes = tree.add(answer)
        assert len(nodes) == len(answer)
        visible = tree.visible()
        for i, node in enumerate(nodes):
            seen = [j for j in range(len(tree.tokens)) if visible[node, j]]
            assert [tree.tokens[j] for j in seen] == prompt + answer[:i]
            assert [tree.depths[j] for j in seen] == list(range(len(prompt) + i))


def test_shared_beginnings_are_fed_once():
    tree = TokenTree([5])
    tree.add([1, 2, 3, 4])
    tree.add([1, 2, 9, 9, 9])
    assert len(tree.tokens) == 1 + 3 + 2  # 1 2 3 and then 9 9; last tokens predict nothing that is asked for
