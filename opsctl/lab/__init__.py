"""The lab: throw-away hosts with a real systemd and sshd, and the stand-in model server.

For rehearsal, the demo and the tests. ``Lab`` (lab.py) is the way in.
"""
