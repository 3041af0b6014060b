"""Adapters: what frameworks, servers and simulators already emit, read as semtrace traces."""
