"""Everything that opens a connection to a broker, a controller or a provider of tokens, for what
librdkafka cannot do. Blocking, for threads.
"""
