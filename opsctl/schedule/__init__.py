"""Playbooks at night: a systemd timer and service each, on the controller's own systemd.

``plans.py`` says what a schedule is and writes its units (pure); ``controller.py`` talks to systemd;
``firing.py`` is what the service runs; ``ledger.py`` remembers what fired, was skipped, or was missed.
"""
