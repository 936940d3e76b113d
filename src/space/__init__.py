"""SPACE: a disposable virtual machine for every agent task, with the keys outside it."""

__version__ = "0.1.0.dev0"
