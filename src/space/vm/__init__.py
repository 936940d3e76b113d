"""Machines: driver protocol, QEMU, jail, network namespaces, disks, the probe.

From: worker
To: QEMU, netlink, btrfs
"""
