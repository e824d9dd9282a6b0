"""Files of runs as answers, whole or in part."""

import os
from typing import BinaryIO

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send


class OpenFile(FileResponse):
    """An open file, which a reader saves under a name, and of which it may ask for a `Range`, to go on where it was.

    What is read is the file that was opened, whatever its path leads to by then.
    """

    def __init__(self, opened: BinaryIO, name: str, media_type: str = "application/octet-stream") -> None:
        number = opened.fileno()
        super().__init__(f"/dev/fd/{number}", filename=name, media_type=media_type, stat_result=os.fstat(number))
        self.opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and close it, also where the reader has gone."""
        with self.opened:
            await super().__call__(scope, receive, send)
