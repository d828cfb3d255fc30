"""Two runs on one thread: exactly one keeps its work, the other is told, and nothing that was acknowledged is lost."""
