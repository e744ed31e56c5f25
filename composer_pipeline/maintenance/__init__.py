"""Looking after a lake: verify, forget, withdraw, status, doctor."""
