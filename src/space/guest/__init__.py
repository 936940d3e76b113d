"""Client of the guest agent over any stream.

From: worker, dataplane
To: agent
"""

from space.guest.client import AdoptReply, AdoptRequest, Attachment, GuestClient, StartSpec
from space.guest.errors import GuestError, GuestProtocolError, GuestUnreachable
from space.guest.frames import Event, Frame, Output

__all__ = [
    "AdoptReply",
    "AdoptRequest",
    "Attachment",
    "Event",
    "Frame",
    "GuestClient",
    "GuestError",
    "GuestProtocolError",
    "GuestUnreachable",
    "Output",
    "StartSpec",
]
