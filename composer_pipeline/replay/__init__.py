"""Stage 2: teachers answer recorded states through OpenRouter, under an exact cost ceiling.

Wings: ``ledger`` (the books), ``provider`` (HTTP), ``catalogue`` (prices), ``selection`` (whom to
ask), ``engine`` (asking), ``plan`` (the price before the purchase). Importing one loads no other.
"""
