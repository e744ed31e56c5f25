"""docs/graph.md is the graph: what is added, lost or turned on by mistake shows as a difference."""

from tests.assets.graph_page import page
from tests.places import ROOT


def test_the_page_is_the_graph() -> None:
    written = (ROOT / "docs" / "graph.md").read_text()
    assert written == page(), "python -m tests.assets.graph_page > docs/graph.md"
