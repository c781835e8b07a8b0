"""From a log of requests to a decision: what a log shows, and which policy it supports.

Each module imports only those before it, and `tests/test_layers.py` keeps it so::

    rows                        rows of a file in any of the usual formats, in a stream
    forms                       forms of logs: which field of a row holds what
    requests                    requests with users, prompts and times; what is wrong with them
    retries                     which request is a retry of which
    summary                     what a log shows, in words and a table
    departures                  departure by LLM and context, with its uncertainty and checks
    scenario                    the fit as a source, arrivals, delays and service times
    fit                         all of it, and its report
    compare                     policies in the scenario, and what the log cannot tell

No prompt and no name of a user is stored: prompts become features, users become numbers.
"""
