"""Names: a reader who searches for a class finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import tidelog

SOURCE = Path(tidelog.__file__).parent


def test_no_two_classes_have_one_name() -> None:
    """Private ones and the parts of messages, which have Kafka's names, aside."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "messages":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
