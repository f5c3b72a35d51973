"""Launch lines: unit files and Exec lines as systemd reads them, flags in an argv, units derived for variants."""
