"""Watches the training in a user's own script, without any change of the script.

The package needs only Python 3.8 and torch 2.1, and runs inside the user's process.
"""
