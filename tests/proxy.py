"""What stands between a client and a Postgres server: a TCP proxy whose lines can be cut, stalled, or lose an answer.

It knows the frames of the protocol and nothing of the package under test.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

Message = tuple[bytes, bytes]
WROTE = (b"INSERT", b"UPDATE", b"DELETE")


class Proxy:
    """Listens on a port of its own; `url` leads through it to the database of the URL that it was made with.

    `greet` may change what the server sends before its first "ready". `lose_commit` is how many more transactions that
    wrote something are answered; the answer of the next one is thrown away, and its line with it: the server has
    committed, and the client cannot know.
    """

    def __init__(self, url: str, greet: Callable[[bytes, bytes], bytes] = lambda kind, body: body) -> None:
        self.greet = greet
        self.lose_commit: int | None = None
        self.lost = self.cuts = self.sent = 0
        self.lines: list[_Line] = []
        self._new_pass = True
        self.info: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(url)
        with psycopg.connect(**self.info) as connection:
            self.server = (connection.info.host, connection.info.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        there = {**self.info, "host": host, "port": port, "sslmode": "disable", "gssencmode": "disable"}
        there.pop("hostaddr", None)
        self.url = psycopg.conninfo.make_conninfo(**there)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.lines.append(_Line(self, client, self._new_pass))

    def cut(self) -> None:
        """Ends every line at once, without a farewell."""
        for line in self.lines:
            line.cut()
        self.lines.clear()

    def stall(self, *, all_new: bool = False) -> None:
        """From now on nothing passes on the lines there are, in either direction; on new ones only with `all_new`."""
        self._new_pass = not all_new
        for line in self.lines:
            line.passes.clear()

    def stall_new(self) -> None:
        """From now on nothing passes on lines that are new."""
        self._new_pass = False

    def flow(self) -> None:
        """Ends a stall."""
        self._new_pass = True
        for line in self.lines:
            line.passes.set()

    def cut_after(self, size: int) -> None:
        """Cuts the lines there are as soon as so many more bytes of their client have passed."""
        for line in self.lines:
            line.left = size

    def count_bytes(self, act: Callable[[], object]) -> int:
        """How many bytes clients send while something is done."""
        before = self.sent
        act()
        return self.sent - before

    def close(self) -> None:
        # close() alone would leave accept() waiting
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


class _Line:
    """One client and the connection to the server on its behalf, each direction in a thread."""

    def __init__(self, proxy: Proxy, client: socket.socket, passes: bool) -> None:
        self.proxy, self.client = proxy, client
        self.server = _connected(*proxy.server)
        self.passes = threading.Event()
        if passes:
            self.passes.set()
        self.left: int | None = None
        for pump in (self._requests, self._answers):
            threading.Thread(target=self._run, args=(pump,), daemon=True).start()

    def _run(self, pump: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            pump()
        self.cut()

    def cut(self) -> None:
        self.passes.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _requests(self) -> None:
        while data := self.client.recv(65_536):
            self.passes.wait()
            self.proxy.sent += len(data)
            if self.left is not None and self.left < len(data):
                self.server.sendall(data[: self.left])
                self.proxy.cuts += 1
                return
            if self.left is not None:
                self.left -= len(data)
            self.server.sendall(data)
        self.server.shutdown(socket.SHUT_WR)

    def _answers(self) -> None:
        greeted, wrote, held = False, False, b""
        for kind, body in self._messages():
            body = body if greeted else self.proxy.greet(kind, body)
            held += struct.pack("!cI", kind, len(body) + 4) + body
            wrote |= kind == b"C" and body.startswith(WROTE) and not body.endswith(b" 0\0")
            if kind == b"Z" and wrote and body == b"I":  # no transaction is open: it was committed
                wrote = False
                if self.proxy.lose_commit is not None:
                    self.proxy.lose_commit -= 1
                    if self.proxy.lose_commit < 0:
                        self.proxy.lose_commit = None
                        self.proxy.lost += 1
                        return
            greeted |= kind == b"Z"
            if kind == b"Z" or not greeted:
                self.passes.wait()
                self.client.sendall(held)
                held = b""

    def _messages(self) -> Iterator[Message]:
        with self.server.makefile("rb") as stream:
            while head := stream.read(5):
                kind, size = struct.unpack("!cI", head)
                yield kind, stream.read(size - 4)


def _connected(host: str, port: int) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server
