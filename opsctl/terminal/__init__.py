"""What a person sees of a run on a terminal: the live view, the tables of `status`, the summary at the end.

Reads run records, events and trace analyses only; never talks to a host.
"""
