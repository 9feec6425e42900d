"""Read and write documents: YAML text to models, and models to YAML text.

yaml_doc, yaml_write, yaml_io   YAML with the line of every key; canonical text; models read and written
errors, fault_lines, key_units  the errors that a command prints; their messages for faults in a document
canonical_form, editor_schemas  other values in a document, its comments kept; JSON Schemas for editors
input_files, output_files       open input files; check that output files can be written
json_text                       parse a row of JSON
"""
