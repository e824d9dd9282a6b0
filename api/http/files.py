"""Files of runs as answers, whole or in part."""

import os
from typing import BinaryIO

from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.responses import MalformedRangeHeader, RangeNotSatisfiable
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Receive, Scope, Send

from api.http.problems import ProblemError

FILES = StaticFiles()
"""Of no folder: it knows by the headers of a request whether the reader has a file already."""


class OpenFile(FileResponse):
    """An open file, which a reader saves under a name, of which it may ask for a `Range`, to go on where it was, and
    which is not sent again to one that has it (RFC 9110, sections 13 and 14).

    What is read is the file that was opened, whatever its path leads to by then.
    """

    def __init__(self, opened: BinaryIO, name: str, media_type: str = "application/octet-stream") -> None:
        number = opened.fileno()
        super().__init__(f"/dev/fd/{number}", filename=name, media_type=media_type, stat_result=os.fstat(number))
        self.opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and close it, also where the reader has gone."""
        with self.opened:
            if FILES.is_not_modified(self.headers, Headers(scope=scope)):
                await NotModifiedResponse(self.headers)(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        """Starlette answers with plain text where this fails; we, as everywhere, with a problem. A range in a unit that
        is not known counts as none."""
        if http_range.partition("=")[0].strip().lower() != "bytes":
            return []
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader as error:
            raise ProblemError(400, error.content, "/header/Range") from None
        except RangeNotSatisfiable as error:
            detail = f"the file has {error.max_size} bytes, and none of them is in the range {http_range}"
            headers = {"Content-Range": f"bytes */{error.max_size}"}
            raise ProblemError(416, detail, "/header/Range", headers=headers) from None
