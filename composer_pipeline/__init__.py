"""composer-pipeline: agent traces in, preference data and trained models out.

The library imports neither dagster nor torch when it is imported. Its rooms
import only downwards: ``lake`` <- ``traces`` <- ``replay`` <- ``preferences`` <-
``publishing``; ``losses`` and ``diloco`` know nothing of the data rooms;
``training`` reads the lake. See docs/architecture.md.
"""

__version__ = "0.1.0"
