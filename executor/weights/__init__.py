"""Weights on disk and on their way: checkpoints, checksums, manifests."""
