"""OpenRouter-shaped HTTP: one request, its upper bound, what its answer means for money.

Does not belong here: the ledger, retries, and the order of calls.
"""
