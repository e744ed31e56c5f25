"""The fixtures of session files: a writer of them, an empty lake, the shared corpus."""

from tests.fixtures.sessions import corpus, files_of, graph, lake, projects, script, unpacked

__all__ = ["corpus", "files_of", "graph", "lake", "projects", "script", "unpacked"]
