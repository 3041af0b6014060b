"""The witness: an OpenAI-compatible server that answers by a script, and writes down what really came and went.

A replayer of any kind is sent to it. It is no model and knows nothing of traces: service times, tokens and faults come
from its script, arrivals are stamped by the kernel, and nothing that the replayer says of itself is in its record. It can stand before
a real server, too: then it passes requests and answers on, and its record has what that server told.
"""

from semtrace_conformance.witness.record import Entry, read_record
from semtrace_conformance.witness.relay import Upstream
from semtrace_conformance.witness.script import Script
from semtrace_conformance.witness.server import Witness

__all__ = ["Entry", "Script", "Upstream", "Witness", "read_record"]
