"""Find out whether a cluster accepts this machine's token; Ray itself retries for half a minute without saying why."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

HARMLESS_CALLS = {True: "/ray.rpc.RayletDriver/ClusterInfo", False: "/ray.rpc.NodeInfoGcsService/CheckAlive"}
"""By whether the address is one of Ray Client: a call that changes nothing."""
SECONDS = 5.0


def refuses_token(address: str) -> bool:
    """Return whether the head at an address asks for a token, and for another one than this machine has."""
    try:
        import grpc
    except ImportError:  # without grpc, Ray itself reports the error
        return False
    call = HARMLESS_CALLS[address.startswith("ray://")]
    mine = token()
    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        for header in ((), (("authorization", f"Bearer {mine}"),)):
            try:
                channel.unary_unary(call, bytes, bytes)(b"", timeout=SECONDS, metadata=header)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    continue
            return False
    return True


def token() -> str:
    """Return this machine's token, from where Ray looks for it; empty if there is none, or Ray would not send it."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return ""
    if given := os.environ.get("RAY_AUTH_TOKEN"):
        return given
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""
