"""The console that results are printed on."""

import io
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from semtrace.cli.printing import drop_output, visible


class Screen(Console):
    """Standard output, as text of strangers may reach it: see `semtrace.cli.printing`."""

    def __init__(self) -> None:
        watched = sys.stdout is not None and sys.stdout.isatty()
        super().__init__(
            file=sys.stdout or io.StringIO(),
            width=None if watched else 140,
            highlight=False,
            emoji=False,  # `:smile:` in a name is no picture
            color_system=None if os.environ.get("NO_COLOR") else "auto",
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Text with markup, its control characters shown as escapes."""
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        """Go on without printing: how a command ends does not depend on who reads it."""
        self.quiet = True
        drop_output()
