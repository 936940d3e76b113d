"""Places sandboxes, expires them, and hands assignments to the workers that dial in.

From: store
To: worker
"""
