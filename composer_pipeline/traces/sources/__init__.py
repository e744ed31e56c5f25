"""How the logs of each agent become records: one module an agent."""
