"""Plans as files and flags of other trainers: what each decision becomes there, and what it costs where it cannot."""
