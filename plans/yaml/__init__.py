"""Text to models and back.

yaml_doc, yaml_write, yaml_io   YAML with the line of every key, canonical text, models read and written
errors, fault_lines             errors that are answers, and the line that a fault of a document is told in
canonical_form, editor_schemas  documents rewritten, and JSON Schemas beside them
input_files, output_files       what may be read, and where results may be written
json_text                       a row of JSON
"""
