"""What a person does about a damaged file, by its table."""

import pytest

from composer_pipeline.lake.parquet import remedy
from composer_pipeline.lake.schema import TABLES


@pytest.mark.parametrize("table", [name for name in TABLES if name.startswith("dataset_")])
def test_the_datasets_tables_are_made_again_by_their_stage(table: str) -> None:
    assert remedy(table, "") == "delete it and run composer-pipeline dataset"
