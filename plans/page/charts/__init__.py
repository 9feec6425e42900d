"""Charts of pages; chart_parts is what all of them share."""
