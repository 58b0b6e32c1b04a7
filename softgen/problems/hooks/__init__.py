"""Hooks: what is done to elements on their way in and out, beside the function.

A kernel's text depends on which hooks there are, and their values are arguments of a launch.
"""
