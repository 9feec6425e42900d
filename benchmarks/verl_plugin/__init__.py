"""The plug-in for verl, driven on a CPU over verl's real TransferQueue, with parts killed under it."""
