"""The places of the bytes of a cluster's topics (local disks, the remote tier, or both), for
users to see.
"""
