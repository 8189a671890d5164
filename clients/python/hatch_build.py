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
    "import anyio\n": "import time\nfrom contextlib import nullcontext\n",
    # There is no event loop to which connections belong.
    "from anyio.lowlevel import RunVar\n": "",
    """        # Connections belong to the event loop that opened them. Tests may run one a request.
        self._given, self._made = http, RunVar[httpx.AsyncClient | None](repr(self), None)

    @property
    def _http(self) -> httpx.AsyncClient:
        if (http := self._given or self._made.get()) is None:
            self._made.set(http := httpx.AsyncClient(trust_env=False))
        return http
""": "        self._http = http or httpx.Client(trust_env=False)\n",
    "        self._made.set(None)\n": "",
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
            if old not in text:
                raise ValueError(f"client.py has no {old!r}")
            text = text.replace(old, new)
        text = re.sub(r"\b(async |await |Async)", "", text)
        if version == "editable":  # It imports from the sources.
            (package / "blocking.py").write_text(text, "utf-8")
            return
        self._folder = TemporaryDirectory()
        made = Path(self._folder.name, "blocking.py")
        made.write_text(text, "utf-8")
        build_data["force_include"][str(made)] = "tollgate_client/blocking.py"
