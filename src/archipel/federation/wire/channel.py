"""Settings of a connection that both ends must agree on."""

from __future__ import annotations

from typing import Any

NAME = "archipel.v1.Federation"
CHUNK = 1 << 20
"""Bytes of a model in one message."""
LIMITS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 4 * CHUNK),
    ("grpc.max_send_message_length", 4 * CHUNK),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # a ping of another kind that is out keeps the one above from leaving, and has a minute by default
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]
"""Of messages, and of connections that have died without a word."""
