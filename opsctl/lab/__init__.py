"""The lab: throw-away hosts with a real systemd and sshd, and the stand-in model server.

For rehearsal, the demo and the tests. ``Lab`` (lab.py) is the entry point. It knows inventories and engines, and no
campaign: what runs against it must not depend on it.
"""
