"""``python -m intact``: the command line where its script is not on the path."""

from intact.cli import main

if __name__ == "__main__":
    main()
