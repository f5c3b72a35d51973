"""The record of every run: journal (SQLite), events, reading a run back, durations measured before.

Nothing here talks to a host or draws on a terminal.
"""
