"""Client of the guest agent over any stream.

From: worker, dataplane
To: agent
"""
