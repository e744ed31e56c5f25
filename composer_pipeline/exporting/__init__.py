"""The dataset and whole sessions as files of other tools."""
