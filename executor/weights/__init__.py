"""Weights on their way from the trainer's ranks to the engines."""
