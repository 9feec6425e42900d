"""Programs that reproduce a published table or compare with a peer; each prints one JSON line with --json."""
