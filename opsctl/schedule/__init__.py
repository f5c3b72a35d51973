"""Playbooks at night: a systemd timer and service each, on the controller's own systemd.

``plans.py`` says what a schedule is and writes its units (pure); ``controller.py`` talks to systemd;
``firing.py`` is what the service runs; ``ledger.py`` keeps what fired, was skipped, or was missed.
Nothing here talks to a host: a start is an ``opsctl run`` of its own.
"""
