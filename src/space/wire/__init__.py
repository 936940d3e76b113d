"""Messages between processes, and the bounded JSON-lines stream that carries them.

From: controller, worker, dataplane
To: controller, worker, dataplane
"""
