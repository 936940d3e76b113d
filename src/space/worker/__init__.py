"""The daemon of a node, the only root: turns assignments into machines and reports what it observes.

From: controller
To: vm, guest, dataplane
"""
