"""Commands that need no server: `penstock schema` (event_schemas.py, schema_commands.py), `penstock mapping`
(subject_mapping.py), `penstock errors` (error_commands.py), shell completion (completion.py) and man pages
(manuals.py).
"""
