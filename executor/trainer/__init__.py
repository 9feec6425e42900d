"""Trainer ranks: packed responses in, one optimizer step, new weights out."""
