"""Exit 0 if the node at SHOAL_URL answers /healthz with 200: the image's health check.

It is run beside each node again and again, so it imports as little as it can: `python -I -S probe.py` takes half of the time of
a request by urllib. It is on the node's own machine, so it checks no certificate.
"""

import os
import socket
import sys

TIMEOUT_S = 8.0  # A node under load may take seconds to answer; one that is stuck takes longer.


def healthy(url: str) -> bool:
    """Whether the node at `url` answers in time.

    Raises:
        OSError: it cannot be reached, or does not answer.
    """
    scheme, _, address = url.rstrip("/").partition("://")
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S) as connection:
        if scheme == "https":
            import ssl

            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            connection = tls.wrap_socket(connection, server_hostname=host)
        connection.sendall(f"GET /healthz HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        return connection.recv(64).split(b" ", 2)[1:2] == [b"200"]


if __name__ == "__main__":
    try:
        sys.exit(0 if healthy(os.environ["SHOAL_URL"]) else 1)
    except OSError as error:
        sys.exit(f"{os.environ['SHOAL_URL']}: {error}")
