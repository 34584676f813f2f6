"""Watches the training of a user's own script, which knows nothing of it.

Needs Python 3.8 and torch 2.1, and nothing else. Everything here runs inside the user's process.
"""
