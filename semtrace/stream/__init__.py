"""Record streams: the capture log that survives a killed recorder, and the Protobuf form of a bundle (spec/stream.md).

`framing`, `wire` and `writer` need the standard library only, so that a recorder can run in an application's own
environment, whatever Protobuf is installed there.
"""
