"""Starts every part of a one-host platform under its own uid, watches them and stops them in order.

From: cli
To: store, controller, templates, api, dataplane, worker
"""
