"""Retry chains in logs of real conversations, and their replay in a queue.

A retry chain is a sequence of conversations in which one user asks the same until satisfied. Each
module imports only those before it, and `tests/test_layers.py` keeps it so::

    shards                      the log's Parquet files: checked, read in batches
    conversations               conversations of one model, with inferred arrival times
    linking                     which conversation is a retrial of which; subsampled singletons
    prepare                     all of it, once, cached
    replay                      a log's chains as a source of queries
    schedules                   policies that rank queries without contexts
"""
