"""opsctl: take a production model server down, measure, and bring it back, verified, whatever happens."""

__version__ = "0.2.0"
