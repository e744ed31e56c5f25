"""What a model costs, holds and is called today, by the provider's own catalogue.

Does not belong here: estimates of a replay (``replay.plan``) and spending.
"""
