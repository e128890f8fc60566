"""The steps of a start before the first request, and the tools for a stopped broker's
directories.
"""
