"""A model whose every probability is written down: contexts to tokens to probabilities.

It shares no code with what it tests, keeps the tokens that it has read as its cache, and refuses
positions that do not count the real tokens before them.
"""

from types import SimpleNamespace

import torch


class Scripted:
    """Speaks by a table.

    Args:
        table: tuple of the ids read so far to {token: probability}; the rest of the probability
            is shared by all other tokens. Contexts that are not in it are uniform.
        vocabulary: number of tokens.
    """

    device = torch.device("cpu")

    def __init__(self, table, vocabulary):
        self.table, self.vocabulary = table, vocabulary
        self.batches = []

    def __call__(
        self, input_ids, attention_mask, position_ids, past_key_values=None, use_cache=True,
        logits_to_keep=0,
    ):  # fmt: skip
        before = past_key_values or [[] for _ in input_ids]
        width = input_ids.shape[1]
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        for i, ids in enumerate(input_ids.tolist()):
            known = before[i]
            for j, (token, place) in enumerate(zip(ids, position_ids[i].tolist(), strict=True)):
                if not attention_mask[i][attention_mask.shape[1] - width + j]:
                    continue
                assert place == len(known), "a position that does not count real tokens"
                known.append(token)
                if tuple(known) in self.table:
                    logits[i, j] = self.distribution(tuple(known)).log()
        self.batches.append(tuple(input_ids.shape))
        return SimpleNamespace(logits=logits[:, -logits_to_keep:], past_key_values=before)

    def distribution(self, context):
        """Return the probabilities (V,) behind a context."""
        found = torch.full((self.vocabulary,), self.rest(context), dtype=torch.float64)
        for token, probability in self.table[context].items():
            found[token] = probability
        return found

    def rest(self, context):
        """Return the probability of each token that the table does not name behind a context."""
        said = self.table.get(context, {})
        return (1 - sum(said.values())) / (self.vocabulary - len(said))

    def p(self, context, token):
        """Return the probability of one token behind a context."""
        return self.table.get(context, {}).get(token, self.rest(context))


def says(table, prompt, answer, probabilities):
    """Add to a table: behind ``prompt`` the answer's tokens have these probabilities."""
    for j, (token, probability) in enumerate(zip(answer, probabilities, strict=True)):
        table.setdefault((*prompt, *answer[:j]), {})[token] = probability
