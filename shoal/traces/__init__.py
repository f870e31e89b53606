"""Traces of OpenTelemetry: where the time of a request goes, from a client's call to its answer.

No other package imports `opentelemetry`, and this one only once the program has loaded it and set a provider of traces.
"""
