"""The training dataset: which rows it has, their splits and files, and whose sessions may leave."""
