"""Builds templates: root file system from Debian packages, kernel, initramfs with the agent.

Only the default template `seed:latest` is built so far; templates from a recipe or an OCI image come with later issues.

From: cli
To: vm
"""
