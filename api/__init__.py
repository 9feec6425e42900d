"""What a Python program calls, and the command line too: documents and options in, documents and findings out."""
