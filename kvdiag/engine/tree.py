"""Tokens to feed as a tree: answers that share a beginning share its tokens."""

from collections.abc import Sequence

import torch


class TokenTree:
    """A prompt chain from which answers branch. Node i is fed at slot i and sees its ancestors and itself."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        self.parents = list(range(-1, len(self.tokens) - 1))
        self.depths = list(range(len(self.tokens)))
        self.root = len(self.tokens) - 1  # the last prompt token predicts the first answer token

    def add(self, answer: Sequence[int]) -> list[int]:
        """Add an answer; the nodes whose next token is answer[0], answer[1], ... (as many as the answer has).

        The answer's last token predicts nothing that is asked for and is not fed.
        """
        nodes = [self.root]
        for token in answer[:-1]:
            nodes.append(self._child(nodes[-1], token))
        return nodes

    def _child(self, parent: int, token: int) -> int:
        for node in range(parent + 1, len(self.tokens)):
            if self.parents[node] == parent and self.tokens[node] == token:
                return node
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1

    def visible(self) -> torch.Tensor:
        """bool [nodes, nodes]: which nodes each node attends to."""
        n = len(self.tokens)
        mask = torch.zeros(n, n, dtype=torch.bool)
        for node in range(n):
            if self.parents[node] >= 0:
                mask[node] = mask[self.parents[node]]
            mask[node, node] = True
        return mask
