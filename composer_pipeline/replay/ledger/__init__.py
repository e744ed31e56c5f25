"""The books: exact, crash-safe, shared by processes and machines. They know no provider.

Does not belong here: HTTP, prices of models, and what a reply means.
"""
