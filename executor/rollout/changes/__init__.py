"""Engines that stop decoding in mid-round: handed over to training, or replaced by those of the tail."""
