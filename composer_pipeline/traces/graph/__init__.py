"""Records to one graph of turns a file: responses, prompts, parents, subagents.

Does not belong here: rows of the lake (``traces.states``).
"""
