"""The program in ``go`` on franz-go and sarama, compiled."""

from __future__ import annotations

from pathlib import Path

from interop.building import HERE, build, run_build, run_fetch

FOLDER = HERE / "go"


def program() -> Path:
    def compile_(folder: Path) -> None:
        run_fetch("go", "mod", "download", cwd=FOLDER)
        command = ("go", "build", "-trimpath", "-o", folder / "clients", ".")
        run_build(*command, cwd=FOLDER, GOPROXY="off")

    return build("go-clients", [p for p in FOLDER.iterdir() if p.is_file()], compile_) / "clients"
