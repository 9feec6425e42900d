"""The policy in the trainer: how it is sharded and loaded, and log-probabilities of packed rows."""
