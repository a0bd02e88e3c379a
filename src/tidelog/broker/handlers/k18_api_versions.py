"""ApiVersions: what we serve, straight from the registry.

The answer to a version that we do not know is in v0 with error 35 and our own entry,
so that any client can fall back.  Telemetry keys and the feature ``transaction.version``
are left out on purpose: clients then do not use what is not there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidelog.broker.registry import REGISTRY, api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.frame import API_VERSIONS_KEY
from tidelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3


def _failed(
    message: ApiVersionsRequest, version: int, code: ErrorCode, text: str | None
) -> ApiVersionsResponse:
    own = code == ErrorCode.UNSUPPORTED_VERSION
    keys = [row for row in _announced() if own and row.api_key == API_VERSIONS_KEY]
    return ApiVersionsResponse(error_code=code, api_keys=keys)


@api(ApiVersionsRequest, versions=(0, 4), needs="", failed=_failed)
def api_versions(
    broker: Broker, message: ApiVersionsRequest, request: Request
) -> ApiVersionsResponse:
    """List the APIs and versions that are served."""
    if request.version >= _FIRST_WITH_SOFTWARE:
        names = (message.client_software_name, message.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            raise ApiError(ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(error_code=0, api_keys=_announced())


def _announced() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=row.key, min_version=row.announce_from, max_version=row.versions[1])
        for _, row in sorted(REGISTRY.items())
    ]
