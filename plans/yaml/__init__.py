"""Read and write documents: YAML text to models, and models to YAML text.

yaml_doc, yaml_io               YAML with the line of every key; models read, and written as canonical text
errors, fault_lines, odd_text   the errors that a command prints; their messages for faults in a document
canonical_form                  other values in a document, its comments kept
input_files, output_files       open input files; check that output files can be written
json_text                       parse a row of JSON
"""
