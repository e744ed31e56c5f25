"""A normalised pair as a row of the dataset, whole and cut to a window.

Belongs here: columns made of the pair's own. Does not belong here: which pairs stay
(``dataset.gather``) and how a prompt is cut (``training.windows``).
"""

import json
from typing import Any

from composer_pipeline.actions import action_text
from composer_pipeline.lake import SCHEMA_VERSION, TABLES
from composer_pipeline.money import PICO
from composer_pipeline.publishing.dataset.rows.message_texts import MessageTexts
from composer_pipeline.publishing.dataset.rows.reading import Lengths, task_of
from composer_pipeline.training.windows import RowCutter

#: Tokens of a window, the longer answer counted.
WINDOW_TOKENS = 8192

Row = dict[str, Any]
_MESSAGES = ("prompt", "chosen", "rejected", "tools")


def pair_row(pair: Row, day: str, lengths: Lengths) -> Row:
    """Return a row of ``dataset_pairs``.

    Args:
        pair: a row of ``normalized_pairs`` with its terms; messages are JSON texts.
        day: of the session.
        lengths: counts tokens.
    """
    made = {
        "task": task_of(pair["prompt"]),
        "chosen_text": action_text(pair["chosen"]),
        "rejected_text": action_text(pair["rejected"]),
        "cost_usd": float((pair["cost_picodollars"] or 0) / PICO),
        "day": day,
        "schema_version": SCHEMA_VERSION,
    }
    known = TABLES["dataset_pairs"].schema.names
    row = {name: value for name, value in pair.items() if name in known} | made
    return row | _tokens(row, lengths)


def _tokens(row: Row, lengths: Lengths) -> Row:
    return {
        "prompt_tokens": lengths.of(row["prompt"], row["tools"]),
        "chosen_tokens": lengths.of(row["chosen"]),
        "rejected_tokens": lengths.of(row["rejected"]),
    }


def window_row(pair: Row, cutter: RowCutter, lengths: Lengths) -> tuple[Row, str]:
    """Return a pair with its prompt cut, and an empty text or the reason why it cannot be.

    Args:
        pair: a row of ``dataset_pairs``; messages are JSON texts.
        cutter: cuts to :data:`WINDOW_TOKENS`.
        lengths: counts tokens.
    """
    messages = {name: [json.loads(text) for text in pair[name] or ()] for name in _MESSAGES}
    cut, why = cutter.cut(messages)
    if why:
        return {}, why
    texts = MessageTexts()
    row = pair | {name: texts.of(cut[name]) for name in _MESSAGES}
    if row["chosen"] == row["rejected"]:
        return {}, "both sides are equal in this form"
    return row | _tokens(row, lengths), ""
