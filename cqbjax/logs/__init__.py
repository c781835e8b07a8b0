"""Chains of retrials in logs of real conversations, and their replay in a queue.

Each module imports only those before it, and `tests/test_layers.py` keeps it so::

    shards                      the log's Parquet files: checked, read in batches
    schema                      the official schema, and rows written in it
    reading                     conversations of one model, with inferred arrival times
    linking                     which conversation is a retrial of which; subsampled singletons
    prepare                     all of it, once, and kept
    generate                    a log with planted chains
    instance                    each conversation's context, each run's arrivals
    rules                       schedules that look at no contexts, as policies
    replay                      a log's chains as a source of queries
"""
