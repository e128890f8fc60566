"""From a socket to the handler of an API, and back: connections, logins, checks of access, quotas."""
