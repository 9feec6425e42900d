"""Whether what `solve` and `diff` say first is true: see __main__.py."""
