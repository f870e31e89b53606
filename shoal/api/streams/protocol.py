"""Streams by the Durable Streams protocol: its path and its methods."""

from __future__ import annotations

STREAMS_PATH = "/v1/streams/{space}/{stream}"
"""The stream is the whole rest of the path."""

SUMMARIES = {
    "GET": "Read a stream from an offset on, now or live",
    "PUT": "Create a stream, or a fork of one",
    "POST": "Append to a stream, or close it",
    "DELETE": "Delete a stream",
}
METHODS = (*SUMMARIES, "HEAD")
