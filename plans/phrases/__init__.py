"""Numbers, sentences and tables as people read them: the same on screen, on pages, in `why` and in `diff`."""
