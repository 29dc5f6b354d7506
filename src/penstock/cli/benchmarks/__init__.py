"""`penstock bench ...`: measures a server with the loads of the official command line's `bench`.

    bench_commands.py   the commands and their options
    bench_jobs.py       what one client does: a job comes in, times come out
    bench_workers.py    clients as processes that begin together
    bench_results.py    rates and percentiles, as text, JSON or CSV

Each client is a process, so that they use several cores; a single one runs in the command's own process.
"""
