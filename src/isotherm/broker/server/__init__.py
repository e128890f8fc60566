"""From a socket to the handler of an API and back: connections, logins, access checks, quotas."""
