"""What several commands share: options, input files, progress lines, findings before a start."""
