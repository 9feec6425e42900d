"""What scores the samples: how many workers under which deadlines, and where a judge is."""
