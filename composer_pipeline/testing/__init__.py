"""Stand-ins and fixtures: sample sessions, a loopback OpenRouter, a loopback Hub."""
