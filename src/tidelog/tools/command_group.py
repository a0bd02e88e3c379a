"""A command with commands below it, which names the nearest one if a name is wrong."""

from __future__ import annotations

import difflib

import click


class CommandGroup(click.Group):
    """click suggests a command only in newer versions, and only what was added to the group."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            names = self.list_commands(ctx)
            close = difflib.get_close_matches(name.lower(), names, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(names)}."
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)
