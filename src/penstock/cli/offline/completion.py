"""Shell completion: `penstock completion bash|zsh|fish` prints a script that asks `penstock complete`.

    source <(penstock completion bash)

Candidates come from the tables of commands; nothing is asked of a server.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cli.framework.cli_contexts import context_names
from penstock.cli.framework.command_run import CommandRun, shared_options
from penstock.cli.framework.command_table import Argument, Command, CommandGroup, Option
from penstock.cli.registry import REGISTRY, find_registered

_SCRIPTS = {
    "bash": """_penstock() {
    local IFS=$'\\n'
    COMPREPLY=($(penstock complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default
}
complete -F _penstock penstock
""",
    "zsh": """#compdef penstock
_penstock() {
    local -a found
    found=("${(@f)$(penstock complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _penstock penstock
""",
    "fish": """function __penstock_complete
    set -l words (commandline -opc) (commandline -ct)
    penstock complete -- $words[2..-1] 2>/dev/null
end
complete -c penstock -a '(__penstock_complete)'
""",
}


def candidates(words: list[str]) -> list[str]:
    """What the last of the words may become. words: those behind `penstock`, the last one as far as it is
    typed.
    """
    *before, last = words or [""]
    if not before:
        return _starting(last, (one.name for one in REGISTRY), "version", "help")
    registered = find_registered(before[0])
    if registered is None:
        return []
    if registered.takes_words:
        return _flags(registered.name, last)
    member: Command | CommandGroup = registered.load()
    rest = before[1:]
    while isinstance(member, CommandGroup):
        if not rest:
            return _starting(last, (one.name for one in member.members.values() if not one.hidden), "--help")
        found = member.find(rest.pop(0))
        if found is None:
            return []
        member = found
    return _of_command(member, rest, last)


def _starting(last: str, *groups: Iterable[str] | str) -> list[str]:
    words = [word for group in groups for word in ([group] if isinstance(group, str) else group)]
    return sorted(word for word in words if word.startswith(last))


def _flags(name: str, last: str) -> list[str]:
    """Flags of `serve`; the other commands that read their words themselves have none here."""
    if name != "serve" or not last.startswith("-"):
        return []
    from penstock.cli.flags import GROUPS

    return _starting(last, (f"--{one}" for flags in GROUPS.values() for flag in flags for one in flag.names))


def _of_command(command: Command, before: list[str], last: str) -> list[str]:
    options = [*command.options, *(option for _, group in shared_options(command) for option in group)]
    spelled = {name: option for option in options for name, _ in option.spellings() if not option.hidden}
    if before and before[-1] in spelled and not spelled[before[-1]].is_flag:
        return _values(spelled[before[-1]], last)
    if last.startswith("--") and "=" in last:
        name, _, value = last.partition("=")
        return [f"{name}={one}" for one in _values(spelled[name], value)] if name in spelled else []
    if last.startswith("-"):
        return _starting(last, (name for name in spelled if name.startswith("--")))
    place = sum(1 for word in before if not word.startswith("-"))  # roughly: values of options count as well
    argument: Argument | None = command.arguments[place] if place < len(command.arguments) else None
    return _starting(last, argument.choices) if argument is not None else []


def _values(option: Option, last: str) -> list[str]:
    if option.key == "context":
        return _starting(last, context_names())
    return _starting(last, option.choices)


async def _complete(run: CommandRun) -> None:
    for one in candidates(run.values.texts("words")):
        run.output.line(one)


async def _completion(run: CommandRun) -> None:
    run.output.raw(_SCRIPTS[run.values.text("shell")].encode())


COMPLETE = Command(
    name="complete",
    summary="Print what the last word may become, for the scripts of `penstock completion`.",
    run=_complete,
    arguments=(Argument(name="words", help="Words behind `penstock`", required=False, repeated=True),),
    connects=False,
    hidden=True,
)
COMPLETION = Command(
    name="completion",
    summary="Print a script that completes commands and options in a shell.",
    run=_completion,
    arguments=(Argument(name="shell", help="The shell", choices=tuple(_SCRIPTS)),),
    details="""  bash   source <(penstock completion bash)           in ~/.bashrc
  zsh    source <(penstock completion zsh)            in ~/.zshrc, behind compinit
  fish   penstock completion fish | source            in ~/.config/fish/config.fish""",
    connects=False,
)
