"""What every part stands on: one table of settings, logs, owned tasks.

From: every package
To: nobody
"""
