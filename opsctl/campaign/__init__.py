"""Carries a campaign out: preflight, lease and heartbeat, swaps, steps, restore.

Hosts are reached through `host` and `serving` only; what is printed belongs to `terminal` and `commands`.
"""
