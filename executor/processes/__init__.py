"""What all parts of the executor share: actors and calls to them, classes of errors, supervision, signals, the host."""
