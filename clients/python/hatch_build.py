"""Makes `blocking.py`, the synchronous client, of `client.py` when the package is built."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REPLACED = {
    "The asynchronous client. The build makes the synchronous one of it: see `hatch_build.py`.": (
        "The synchronous client. `hatch_build.py` has made it of `client.py`: edit that."
    ),
    "The asynchronous client, for asyncio and trio": "The synchronous client",
    "tasks may share it": "threads may share it",
    "import anyio": "import time\nfrom contextlib import nullcontext",
    "anyio.CancelScope(shield=True):  # a cancelled task gives back, too": "nullcontext():",
    "anyio.sleep": "time.sleep",
    "asynccontextmanager": "contextmanager",
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}


class BlockingClient(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package = Path(self.root, "src", "tollgate_client")
        text = (package / "client.py").read_text("utf-8")
        for old, new in REPLACED.items():
            text = text.replace(old, new)
        text = re.sub(r"\b(async |await |Async)", "", text)
        if version == "editable":  # It imports from the sources.
            (package / "blocking.py").write_text(text, "utf-8")
            return
        self._folder = TemporaryDirectory()
        made = Path(self._folder.name, "blocking.py")
        made.write_text(text, "utf-8")
        build_data["force_include"][str(made)] = "tollgate_client/blocking.py"
