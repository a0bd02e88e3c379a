"""ApiVersions: what we serve, straight from the registry.

The answer to a version that we do not know is in v0 with error 35 and our own entry,
so that any client can fall back.  Telemetry keys and the feature ``transaction.version``
are left out on purpose: clients then do not use what is not there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidelog.broker.registry import REGISTRY, raw_api
from tidelog.broker.request import Request
from tidelog.errors import ErrorCode
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import API_VERSIONS_KEY
from tidelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_VERSIONS = (0, 4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3


@raw_api(ApiVersionsRequest, versions=_VERSIONS)
def api_versions(broker: Broker, request: Request) -> None:
    """List the APIs and versions that are served."""
    version = request.version
    response = ApiVersionsResponse(error_code=0, api_keys=_announced())
    if not _VERSIONS[0] <= version <= _VERSIONS[1]:
        own = [row for row in _announced() if row.api_key == API_VERSIONS_KEY]
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
        request.version = 0
    elif version >= _FIRST_WITH_SOFTWARE:
        message, _ = decoder(ApiVersionsRequest, version)(request.data, request.start)
        names = (message.client_software_name, message.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            response = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    request.reply(response)


def _announced() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.announce_from, max_version=api.versions[1])
        for _, api in sorted(REGISTRY.items())
    ]
