"""From a line of input to a record, for ``tidelog produce``.

A line is ``headers SEPARATOR key SEPARATOR value``; the first two parts are there only if
their separators are given.  Headers are ``name=value,name=value``.  A part that equals the
null marker is null: a value of null is a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.tools.record_json import Content, Outgoing, parse_record

LineReader = Callable[[bytes], Outgoing]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line is to be understood; ``read`` does it, and raises ValueError if it cannot."""

    key: Content = None
    key_separator: bytes | None = None
    headers: tuple[tuple[str, Content], ...] = ()
    headers_separator: bytes | None = None
    null: bytes | None = None
    json: bool = False

    def read(self, line: bytes) -> Outgoing:
        if self.json:
            found = parse_record(line)
            key = self.key if self.key is not None else found.key
            return found._replace(key=key, headers=[*self.headers, *found.headers])
        headers = list(self.headers)
        if self.headers_separator is not None:
            text, separator, line = line.partition(self.headers_separator)
            if not separator:
                raise ValueError(f"there is no {_shown(self.headers_separator)} after the headers")
            headers += self._headers(text)
        key = self.key
        if self.key_separator is not None:
            first, separator, line = line.partition(self.key_separator)
            if not separator:
                raise ValueError(f"there is no {_shown(self.key_separator)} after the key")
            key = self._content(first)
        return Outgoing(key, self._content(line), headers)

    def _content(self, text: bytes) -> Content:
        return None if self.null is not None and text == self.null else text

    def _headers(self, text: bytes) -> list[tuple[str, Content]]:
        if not text or text == self.null:
            return []
        result = []
        for part in text.split(b","):
            name, separator, content = part.partition(b"=")
            if not separator:
                raise ValueError(f"header {_shown(part)} is not name=value")
            try:
                result.append((name.decode(), self._content(content)))
            except UnicodeDecodeError:
                raise ValueError(f"the header name {_shown(name)} is not UTF-8") from None
        return result


def _shown(content: bytes) -> str:
    return repr(content.decode("utf-8", "replace"))
