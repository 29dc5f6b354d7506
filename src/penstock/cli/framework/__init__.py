"""The frame of the command line: tables of commands, and what runs them.

A module of commands declares a `CommandGroup` and adds functions to it; `cli/registry.py` names the module. A
function gets a `CommandRun`: typed values (`run.values`), a connection (`run.connect()`,
`run.jetstream()`), output (`run.output`: text, tables, JSON) and questions (`run.confirm`). Errors of
penstock.errors become one line on stderr and an exit status.

    command_table.py     options, arguments, commands, groups
    command_parser.py    words to values; command_values.py  the values by name and type
    value_kinds.py       converters: durations, sizes, times; value_texts.py  the way back
    command_help.py      help texts
    cli_contexts.py      context files; cli_connection.py  options of a connection
    cli_output.py        tables, JSON, progress
    questions.py         questions for options at a terminal
    editing.py           the user's editor
    command_run.py       one run of a command; server_refusals.py  errors that servers sent meanwhile
"""
