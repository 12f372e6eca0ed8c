"""The AlignmentJob document: models, validation, loading and generated documentation.

`job` holds the document's root, `sections` and `algorithms` its parts, `pods` the pod templates, `loading`
reads YAML files, and `docs` renders documentation from the models.
"""
