"""The proof: arms of the composer loss on the small world, compared on held-out sessions."""
