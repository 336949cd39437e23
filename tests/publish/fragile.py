"""A method of others of whose settings one cannot run."""

import dataclasses

from tests.engine.foreign_methods import LongestKeys


@dataclasses.dataclass
class FailsBelowHalf(LongestKeys):
    """Raises where less than half is kept. Its settings share an object, so all of them fail."""

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        if self.compression_ratio > 0.6:
            raise ValueError("cannot keep less than half")
        return super().compress(module, hidden_states, keys, values, attentions, kwargs)
