"""What a plan of groups says: the document, its reasons, its timelines."""
