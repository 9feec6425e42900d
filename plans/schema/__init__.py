"""The documents as strict, frozen models: one module a document; base and limits are what all of them share."""
