"""A file system in memory that dies where a test wants it to."""

from __future__ import annotations


class Crash(Exception):
    """The process is gone: what it had written stays."""


class MemoryFiles:
    """``die_at`` counts changes; the one of that number does not happen any more."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.changes = 0
        self.die_at: int | None = None

    def _change(self) -> None:
        self.changes += 1
        if self.changes == self.die_at:
            raise Crash

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/"
        rest = [name.removeprefix(prefix) for name in self.content if name.startswith(prefix)]
        return sorted({name.split("/")[0] for name in rest})

    def read(self, name: str) -> bytes:
        if name not in self.content:
            raise FileNotFoundError(name)
        return self.content[name]

    def create(self, name: str, data: bytes) -> bool:
        self._change()
        if name in self.content:
            return False
        self.content[name] = data
        return True

    def move(self, source: str, target: str) -> bool:
        self._change()
        if source not in self.content:
            return False
        self.content[target] = self.content.pop(source)
        return True

    def remove(self, name: str) -> None:
        # A folder goes file by file: a crash may leave some of it.
        for path in [path for path in self.content if path == name or path.startswith(f"{name}/")]:
            self._change()
            del self.content[path]

    def exists(self, name: str) -> bool:
        return name in self.content

    def touch(self, name: str) -> None:
        pass

    def touched_ms(self, name: str) -> int:
        return 0

    def visible(self) -> dict[str, bytes]:
        """What a plain reader sees."""
        return {
            name: data
            for name, data in self.content.items()
            if not any(part[0] in "._" for part in name.split("/"))
        }
