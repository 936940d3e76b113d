"""Attach, standard input, signals: from a client with a token to a guest stream.

From: client, api
To: guest
"""
