"""The Python that runs a test's programs: a warning is an error there too, as it is in the tests themselves."""

import sys

OTHERS = "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
"""What is not this package's to mend; pyproject.toml has the same for the tests themselves."""
PYTHON = [sys.executable, "-W", "error", "-W", OTHERS]
