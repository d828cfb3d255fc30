"""What is installed, for tests that need a newer version of something than the package itself does."""

from importlib.metadata import version


def older_than(package: str, needed: str) -> bool:
    return _numbers(version(package)) < _numbers(needed)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())
