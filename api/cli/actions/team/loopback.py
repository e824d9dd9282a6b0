"""Waits on this machine for what a browser brings back from a sign-in. Source: RFC 8252, section 7.3."""

import hmac
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from service import Terminal, challenge_of, new_secret

LOOK_EVERY_S = 0.5
PATIENCE_S = 5.0
"""With whoever connects and says nothing, as browsers do, beside which others are answered."""
THERE = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Millrace</title>
<p style="font: 1rem/1.5 system-ui, sans-serif; margin: 15vh auto; max-width: 34rem">
Back to the terminal: it says whether you are signed in. This page can be closed.</p></html>
"""


class Loopback:
    """A server for one answer."""

    def __init__(self, port: int = 0) -> None:
        """port: On the loopback address; 0: any that is free. Raises OSError."""
        self.verifier = new_secret()
        self.state = new_secret()
        self.code = ""
        self.error = ""
        """Why there is none, in words."""
        self.http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.http.timeout = LOOK_EVERY_S
        self.terminal = Terminal(port=self.http.server_port, state=self.state, challenge=challenge_of(self.verifier))

    def address(self, begin: str) -> str:
        """Where the browser goes. begin: Where the service has one begin a sign-in."""
        return f"{begin}?{urlencode(self.terminal.model_dump())}"

    def wait(self, within_s: float) -> str:
        """The code that the browser brings; empty: none has come in time, or an error has."""
        end = time.monotonic() + within_s
        while not self.code and not self.error and time.monotonic() < end:
            self.http.handle_request()
        return self.code

    def close(self) -> None:
        """Listen no more."""
        self.http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE_S

            def do_GET(self) -> None:
                told = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
                is_ours = hmac.compare_digest(told.get("state", "").encode(), loopback.state.encode())
                self.send_response(200 if is_ours else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(THERE if is_ours else b"")
                if is_ours:
                    loopback.error = told.get("error", "" if "code" in told else "the browser has brought nothing")
                    loopback.code = told.get("code", "")

            def log_message(self, *_: object) -> None:
                """Nothing: the address has the code in it."""

        return Handler
