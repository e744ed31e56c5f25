"""Records to one graph of turns a file: responses, prompts, parents, subagents.

Does not belong here: rows of the lake (``traces.states``).
"""

from composer_pipeline.traces.graph.nodes import NONE, Call, Node, Part
from composer_pipeline.traces.graph.pool import Counts, Pool, Redactor
from composer_pipeline.traces.graph.turns import Subagent, Trajectory

__all__ = ["NONE", "Call", "Counts", "Node", "Part", "Pool", "Redactor", "Subagent", "Trajectory"]
