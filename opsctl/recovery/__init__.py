"""After a controller died or a person steps in: resume, rollback, collecting results, asking the host for the outcome.

May use `campaign`; the campaign itself never imports this room.
"""
