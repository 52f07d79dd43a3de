"""Values of options that were typed as text."""


def whole_numbers(option: str, text: str, like: str = "1,2,4") -> list[int]:
    """The numbers in `text`, such as "1,2,4".

    Raises:
        ValueError: it is something else; the message names `option` and shows what it should be `like`.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: write whole numbers separated by commas, such as {like}") from None
