"""The errors of ``huggingface_hub`` and of the network below it, as one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from spola.core.errors import ConfigError, SpolaError
from spola.load.transfer import ServerBusy

__all__ = ["in_one_line"]

_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
_LOG_IN = "put a token of your account into HF_TOKEN, or log in with `hf auth login`"


@contextmanager
def in_one_line(repository: str) -> Iterator[None]:
    """Raises ConfigError naming ``repository`` for what the library raises; lets SpolaError through."""
    from huggingface_hub import errors

    try:
        yield
    except SpolaError:
        raise
    except errors.OfflineModeIsEnabled:
        raise ConfigError(
            f"{repository}: is not on this disk, and HF_HUB_OFFLINE is set; unset it to download"
        ) from None
    except errors.GatedRepoError:
        raise ConfigError(
            f"{repository}: its terms must be accepted on its page of the hub first; then {_LOG_IN}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{repository}: the hub has no such model, or it is private: check the name; "
            f"for a private one, {_LOG_IN}"
        ) from None
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError):
        raise ConfigError(f"{repository}: a file is gone from the hub; try again") from None
    except errors.HfHubHTTPError as error:
        raise ConfigError(f"{repository}: {_refusal(getattr(error.response, 'status_code', 0))}") from None
    except errors.HFValidationError:
        raise ConfigError(f"{repository[:80]}: is no name of a repository; write org/name") from None
    except ServerBusy as error:
        raise ConfigError(f"{repository}: {_refusal(error.status)}") from None
    except OSError as error:
        raise _of_system(repository, error) from None
    except Exception as error:  # of whichever HTTP library it uses
        if type(error).__module__.split(".")[0] in _HTTP_LIBRARIES:
            raise _no_network(repository, error) from None
        raise


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"the hub refuses access (HTTP {status}); {_LOG_IN}"
    if status == 429:
        return "the hub says that these are too many requests (HTTP 429); wait a few minutes"
    return f"the hub answered with HTTP {status}; try again later"


def _of_system(repository: str, error: OSError) -> ConfigError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError(f"{repository}: the disk is full; make room and pull again, it goes on from there")
    if error.filename is not None:
        return ConfigError(
            f"{repository}: {error.filename} cannot be written ({error.strerror}); "
            "HF_HOME names another folder"
        )
    return _no_network(repository, error)


def _no_network(repository: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{repository}: the hub cannot be reached ({type(error).__name__}); check the network, "
        "or pass a file with -m"
    )
