"""`python -m headrace`, which is also how torchrun starts it."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
