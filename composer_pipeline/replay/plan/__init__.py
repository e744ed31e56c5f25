"""The price before the purchase: what each way to ask would cost, and why.

Does not belong here: spending.
"""
