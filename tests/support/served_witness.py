"""A witness that serves in a thread of the tests' own process."""

from __future__ import annotations

import threading

from semtrace_conformance.witness import Script, Witness, read_record

QUICK = {"first_token_ns": 0, "token_ns": 0}


class Serving:
    """A witness in a thread."""

    def __init__(self, path, upstream=None, **script) -> None:
        self.path = path
        self.witness = Witness(Script.model_validate({"service": QUICK, **script}), path, upstream=upstream)
        self.port = self.witness.port
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while self.witness.running:
            self.witness.poll(0.01)
        self.witness.close()

    def end(self):
        self.witness.running = False
        self.thread.join()
        return read_record(self.path)
