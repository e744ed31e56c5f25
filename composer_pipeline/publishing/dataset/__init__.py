"""The dataset: what is in it, in which split, and its build as one unit."""

from composer_pipeline.publishing.dataset.build import DatasetReport, build_dataset
from composer_pipeline.publishing.dataset.info import dataset_info
from composer_pipeline.publishing.dataset.marker import (
    Build,
    DatasetFile,
    check_statistics,
    copy_file,
    inputs_of,
    read_build,
    write_marker,
)

__all__ = [
    "Build",
    "DatasetFile",
    "DatasetReport",
    "build_dataset",
    "check_statistics",
    "copy_file",
    "dataset_info",
    "inputs_of",
    "read_build",
    "write_marker",
]
