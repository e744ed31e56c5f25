"""What a person does about a damaged file, by its table."""

import pytest

from composer_pipeline.lake import DATASETS, TABLES
from composer_pipeline.lake.damage import remedy


@pytest.mark.parametrize("table", DATASETS)
def test_the_datasets_tables_are_made_again_by_their_stage(table: str) -> None:
    assert remedy(table, "") == "delete it and run composer-pipeline dataset"


def test_every_table_of_the_dataset_is_among_them() -> None:
    every = {name for name in TABLES if name.startswith("dataset_")}
    assert set(DATASETS) < every
    for table in every:
        assert remedy(table, "") == "delete it and run composer-pipeline dataset"
