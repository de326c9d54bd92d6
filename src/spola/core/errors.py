"""The errors that people see.

Every error carries one line that names the field, file or tensor at fault and says what to do. The
command line prints that line and exits; the server turns it into a JSON body. This module does not
format, log or translate anything.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "ConfigError",
    "MissingExtraError",
    "ModelError",
    "RequestError",
    "SpolaError",
]


class SpolaError(Exception):
    """Base of every error spola raises on purpose; ``str(error)`` is one line for a person."""


class ConfigError(SpolaError):
    """An option or environment variable that cannot be obeyed."""


class ModelError(SpolaError):
    """A model file that is malformed, incomplete or of a kind that is not supported."""


class MissingExtraError(SpolaError):
    """An optional library is needed that is not installed; the message names the extra."""


class CapacityError(SpolaError):
    """Something can never fit into the memory given; the message holds the numbers."""


class RequestError(SpolaError):
    """One request is wrong; it is refused and nobody else is touched.

    ``param`` is the field at fault in the API's words, ``code`` OpenAI's machine-readable code,
    ``status`` the HTTP status a server answers with; ``retry_after`` are seconds after which the same
    request may be taken.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.retry_after = retry_after
