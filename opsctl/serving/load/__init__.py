"""Loads: phases and progress read from a server's log, stall limits, causes of failure."""
