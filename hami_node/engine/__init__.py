"""The scheduling engine. Pure: no clock, I/O, logging, threads or globals."""
