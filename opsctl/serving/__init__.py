"""A model server as a service: readiness, probes, stop, traffic; `launch/`, `load/`, `gpu/` and `doctor/` below.

Takes a connected `Host`; knows neither playbooks' phases nor the journal.
"""
