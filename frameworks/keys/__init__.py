"""The keys of other trainers by version, with defaults, made by tools/framework_keys.py; a module reads them."""
