"""What reproduces a published table or compares with a peer; each prints one JSON line with --json."""
