"""What the user wrote: models, YAML with positions, expressions, checks, schema. Imports no other room.

Import from the module that has it: whoever wants an inventory need not load playbooks and their expressions.
"""
