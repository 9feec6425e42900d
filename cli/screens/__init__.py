"""What show, report and execute draw in a terminal."""
