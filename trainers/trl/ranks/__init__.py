"""One replica as several processes, its ranks: each runs a part of every step's rows.

Belongs here: the group of processes, dealing rows to them, what they agree on, shards of the
model, and starting them. Does not belong here: losses, and replicas, which train apart
(``composer_pipeline.diloco``).

All ranks draw the same windows; a loss holds the normaliser of its whole window. So gradients are
summed over the ranks, never averaged, and the sum is that of one process.
"""

#: Variables by which a process knows its rank, how many there are, and the file where they meet.
RANK, RANKS, STORE = "COMPOSER_RANK", "COMPOSER_RANKS", "COMPOSER_RANKS_STORE"
