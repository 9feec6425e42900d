"""The commands: parsing, printing, exit codes. One module per command; no logic that a library user would miss."""
