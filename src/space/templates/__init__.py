"""Builds templates: root file system from Debian packages, kernel, initramfs with the agent.

From: cli
To: vm
"""
