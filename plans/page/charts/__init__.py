"""Charts of pages; axes.py is what all of them share."""
