"""What can go wrong, and the exit code each kind of fault ends a command with.

Every error names the file, the place in it, what was expected and what was found, as far as they are known.
All of them pickle, so that a worker process can hand one to its parent.
"""

from __future__ import annotations

from pathlib import PurePath

from wdsmix.texts import printable

__all__ = ["ConfigError", "ConflictError", "DataError", "StorageError", "WdsmixError"]


class WdsmixError(Exception):
    """Base of all errors that wdsmix raises on purpose.

    Args:
        message: What is wrong, in one line.
        path: The file or URL at fault.
        where: The place inside it (a key, a row, a byte offset, an option).
        expected: What should have been there.
        found: What was there.
        hint: What the reader can do about it.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        path: str | PurePath | None = None,
        where: str | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.where = where
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.hint = hint

    def __str__(self) -> str:
        names = (printable(name) if name else None for name in (self.path, self.where))
        text = ": ".join(part for part in (*names, self.message) if part)
        if self.expected is not None and self.found is not None:
            text += f" (expected {self.expected}, found {self.found})"
        elif self.expected is not None:
            text += f" (expected {self.expected})"
        elif self.found is not None:
            text += f" (found {self.found})"
        return f"{text}; {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[WdsmixError], fields: dict[str, str | None]) -> WdsmixError:
    message = fields.pop("message") or ""
    return kind(message, **fields)


class DataError(WdsmixError):
    """The data are at fault: damaged, incomplete or not what they claim to be."""

    exit_code = 1


class ConfigError(WdsmixError):
    """The arguments or the configuration are at fault."""

    exit_code = 2


class ConflictError(WdsmixError):
    """The work is refused because it would mix two things that differ."""

    exit_code = 3


class StorageError(WdsmixError):
    """A store could not be reached or refused the credentials."""

    exit_code = 4
