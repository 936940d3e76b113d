"""The space command.

From: a person
To: api, dataplane
"""
