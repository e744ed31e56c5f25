"""What people write into a card stays there when the card is generated again.

Belongs here: the two lines between which a text is theirs. Does not belong here: the generated
words (``publishing.card``).
"""

BEGIN = "<!-- what you write below this line stays -->"
END = "<!-- what you write above this line stays -->"


def keep_text(new: str, old: str) -> str:
    """Return a new card with the text that people wrote into the old one.

    A card without the two lines gets them at its end. A text that holds a line itself ends there.

    Args:
        new: the generated card.
        old: the card of the repository; empty where there is none.
    """
    if BEGIN not in new:
        new = f"{new.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, rest = new.split(BEGIN, 1)
    inside, tail = rest.split(END, 1)
    theirs = old.split(BEGIN, 1)[1].split(END, 1)[0] if BEGIN in old and END in old else ""
    return f"{head}{BEGIN}{theirs if theirs.strip() else inside}{END}{tail}"
