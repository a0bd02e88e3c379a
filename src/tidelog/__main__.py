"""``python -m tidelog`` is ``tidelog``."""

from tidelog.tools.main import main

main()
