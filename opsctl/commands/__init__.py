"""The command line: one file a command group, Typer functions that each call one function of a room below.

No logic that another program could want; it belongs to the room that owns the data.
"""
