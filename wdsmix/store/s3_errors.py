"""What boto3 raises, as errors of ours: which are worth another try, which are not, and none with a secret in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wdsmix.errors import ConfigError, DataError, StorageError, WdsmixError
from wdsmix.store.base import MissingObjectError, NotSupportedError, PreconditionError, TransientError

__all__ = ["answered", "mapped"]

_DENIED = frozenset(
    {
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "AllAccessDisabled",
        "AccountProblem",
        "RequestTimeTooSkewed",
        "AuthorizationHeaderMalformed",
        "InvalidSecurity",
        "NotSignedUp",
        "Forbidden",
        "Unauthorized",
    }
)
_BUSY = frozenset(
    {
        "RequestTimeout",
        "RequestTimeoutException",
        "SlowDown",
        "InternalError",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "OperationAborted",
        "BadDigest",
        "IncompleteBody",
        "PriorRequestNotComplete",
        "XAmzContentSHA256Mismatch",
    }
)
_CREDENTIALS = "credentials come from the environment, ~/.aws or the machine's role, as for the AWS tools"


@contextmanager
def mapped(where: str, verb: str) -> Iterator[None]:
    """Turns what boto3 raises inside into errors of wdsmix.

    Args:
        where: URL of the object.
        verb: What is being asked.
    """
    try:
        yield
    except WdsmixError:
        raise
    except Exception as error:
        found = _translate(error, where, verb)
        if found is None:
            raise
        raise found from error


def _translate(error: Exception, where: str, verb: str) -> WdsmixError | None:
    from botocore import exceptions as known
    from urllib3 import exceptions as wire

    path = where or None
    if isinstance(error, known.ClientError):
        return answered(error.response, path, verb)
    kind = type(error).__name__
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError)):
        return StorageError("no credentials found", path=path, hint=_CREDENTIALS)
    if isinstance(error, known.ProfileNotFound):
        return StorageError("the profile does not exist", path=path, where="AWS_PROFILE", hint=_CREDENTIALS)
    if isinstance(error, (known.CredentialRetrievalError, known.TokenRetrievalError, known.SSOError)):
        return StorageError(f"credentials can't be had ({kind})", path=path, hint=_CREDENTIALS)
    if isinstance(error, known.SSLError):
        return StorageError("the server's certificate can't be trusted", path=path, hint="AWS_CA_BUNDLE names others")
    if isinstance(error, known.ParamValidationError):
        return ConfigError("not a valid bucket name or key", path=path)
    if isinstance(error, (known.HTTPClientError, known.ConnectionError, known.IncompleteReadError)):
        return TransientError(_WORDS.get(kind, f"connection failed ({kind})"), path=path, where=verb or None)
    if isinstance(error, (wire.HTTPError, ConnectionError, TimeoutError)):
        return TransientError(f"connection failed ({kind})", path=path, where=verb or None)
    if isinstance(error, known.BotoCoreError):
        return StorageError(f"the request can't be made ({kind})", path=path, where=verb or None)
    if isinstance(error, ValueError) and not where:
        return ConfigError("not a valid endpoint", where="endpoint URL")
    if isinstance(error, ValueError) and verb in ("GET", "HEAD"):  # boto3's, of a header
        return StorageError("the answer can't be understood", path=path, where=verb)
    return None


_WORDS = {
    "EndpointConnectionError": "the endpoint can't be reached",
    "ConnectTimeoutError": "the endpoint does not answer",
    "ReadTimeoutError": "the server went silent",
    "ConnectionClosedError": "the connection was closed",
    "IncompleteReadError": "the answer ended early",
    "ResponseStreamingError": "the answer ended early",
    "ProxyConnectionError": "the proxy can't be reached",
}


def answered(response: Any, path: str | None, verb: str) -> WdsmixError:
    """The error that an answer is.

    Args:
        response: As boto3 has it in its ClientError: ResponseMetadata and Error.
        path: URL of the object.
        verb: What was asked.
    """
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", ""))
    said = f"{code} ({status})" if code and code != str(status) else str(status)
    where = verb or None
    if code == "NoSuchBucket":
        return ConfigError("there is no such bucket", path=path)
    if code == "NoSuchUpload":
        return MissingObjectError("there is no such upload", path=path)
    if status == 404 or code in ("NoSuchKey", "NotFound"):
        return MissingObjectError("there is no such object", path=path)
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return PreconditionError("the object is there already, or is another version", path=path)
    if code in _DENIED or (status in (401, 403) and code not in _BUSY):
        return StorageError(f"the store refuses: {said}", path=path, where=where, hint=_CREDENTIALS)
    if status == 416 or code == "InvalidRange":
        return DataError("the object is shorter than it should be", path=path)
    if status == 501 or code in ("NotImplemented", "MethodNotAllowed"):
        return NotSupportedError(f"the store does not support this: {said}", path=path, where=where)
    if code in _BUSY or status in (408, 429) or status >= 500:
        return TransientError(f"the store answered {said}", path=path, where=where)
    return StorageError(f"the store answered {said}", path=path, where=where)
