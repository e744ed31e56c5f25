"""Texts measured and shortened in tokens.

Belongs here: counting tokens once, and cutting the middle out of a text. Does not belong here:
which text is to be shortened (``training.windows.policy``).
"""

from functools import lru_cache
from typing import Any

#: Stands where the middle of an over-long text was.
CUT = "\n[…]\n"
#: A text with more characters a token than this does not exist but for runs of blanks.
_MOST_CHARS = 12
#: Characters of each of the four parts by which a long text is measured.
_SAMPLE = 512
#: Texts whose length is remembered: the states of one session share their messages.
_REMEMBERED = 1 << 16


class Texts:
    """Counts and cuts for one tokenizer.

    Args:
        tokenizer: a fast tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lengths: dict[int, int] = {}
        self.shortened = lru_cache(maxsize=4096)(self._shortened)

    def ids(self, text: str) -> list[int]:
        """Tokenise rendered text; the template already wrote the special tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def count(self, text: str) -> int:
        """Return about how many tokens a text has; of a long one only parts are tokenised."""
        if not text:
            return 0
        key = hash(text)
        if key not in self._lengths:
            if len(self._lengths) >= _REMEMBERED:
                self._lengths.clear()
            self._lengths[key] = self._measured(text)
        return self._lengths[key]

    def _measured(self, text: str) -> int:
        if len(text) <= 4 * _SAMPLE:
            return len(self.ids(text))
        starts = (len(text) * part // 4 for part in range(4))
        parts = [text[start : start + _SAMPLE] for start in starts]
        return sum(len(self.ids(part)) for part in parts) * len(text) // (4 * _SAMPLE)

    def _shortened(self, text: str, tokens: int) -> str:
        """Return head and tail of a text, about ``tokens`` in all, with a mark between."""
        half = max(1, (tokens - 4) // 2)
        if len(text) <= half:  # a token has at least one character, or a byte of one
            return text
        ends = half * _MOST_CHARS
        if len(text) <= 2 * ends:
            offsets = self._offsets(text)
            if len(offsets) <= tokens:
                return text
            return text[: offsets[half - 1][1]] + CUT + text[offsets[-half][0] :]
        # Only the ends are tokenised: the middle of a long log costs nothing.
        head, tail = text[:ends], text[-ends:]
        first, last = self._offsets(head), self._offsets(tail)
        stop = first[min(half, len(first)) - 1][1]
        return head[:stop] + CUT + tail[last[-min(half, len(last))][0] :]

    def _offsets(self, text: str) -> Any:
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return found["offset_mapping"]
