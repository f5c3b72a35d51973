"""``python -m opsctl.payload``: the payload without the zipapp."""

from opsctl.payload.main import main

raise SystemExit(main())
