"""What does the plan of groups say: the document, its reasons, its timelines."""
