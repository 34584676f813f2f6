"""A pytest plugin for zprobe: did every gradient reach the optimizer exactly once?"""

from .report import Finding, Report

__all__ = ["Finding", "Report"]
