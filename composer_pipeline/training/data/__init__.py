"""What a replica reads: the token ids of every channel's rows, and the folder they lie in.

``rows`` says what a row is, ``arrow_rows`` how rows are kept, ``folder`` what a finished folder
holds, ``build`` makes it from the dataset tables with what ``make`` makes of a row, and
``pair_weights`` weights pairs. Rendering is
not here (``training.windows``), nor batches and tensors (``trainers``). Imports no torch.
"""

from composer_pipeline.training.data.arrow_rows import (
    ArrowRows,
    SomeRows,
    bytes_of,
    column_of,
    item_lengths_of,
    writing_rows,
)
from composer_pipeline.training.data.build import build, require_rows, rows_of_tables
from composer_pipeline.training.data.folder import CHANNELS, TrainingData
from composer_pipeline.training.data.make import Prompt, pair
from composer_pipeline.training.data.pair_weights import loss_factors
from composer_pipeline.training.data.rows import Demonstration, Group, Hint, Pair
from composer_pipeline.training.data.tables import feeds, tables_of

__all__ = [
    "CHANNELS",
    "ArrowRows",
    "Demonstration",
    "Group",
    "Hint",
    "Pair",
    "Prompt",
    "SomeRows",
    "TrainingData",
    "build",
    "bytes_of",
    "column_of",
    "feeds",
    "item_lengths_of",
    "loss_factors",
    "pair",
    "require_rows",
    "rows_of_tables",
    "tables_of",
    "writing_rows",
]
