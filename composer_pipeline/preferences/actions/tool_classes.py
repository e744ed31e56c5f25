"""Tools by what they do: read, search, edit, run, plan, ask.

Does not belong here: what a call changes (``preferences.actions.mutation``).
"""

CLASSES = {
    "read": ("Read", "NotebookRead", "TaskOutput", "BashOutput"),
    "search": ("Grep", "Glob", "LS"),
    "edit": ("Edit", "MultiEdit", "Write", "NotebookEdit"),
    "run": ("Bash",),
    "plan": ("TodoWrite", "EnterPlanMode", "ExitPlanMode"),
    "ask": ("AskUserQuestion",),
}


CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}


def tool_name(name: str) -> str:
    """Return the tool's name; ``Agent`` is ``Task``."""
    return "Task" if name == "Agent" else name


def class_of(name: str) -> str:
    """Return read, search, edit, run, plan or ask, or the tool itself for other tools."""
    name = tool_name(name)
    if name in CLASS_OF:
        return CLASS_OF[name]
    return "plan" if name.startswith("Task") else name
