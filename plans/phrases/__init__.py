"""What phases, amounts and assumptions are called in prose: the same on screen, on pages, in `why` and in `diff`."""
