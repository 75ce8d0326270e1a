"""``python -m intact8``: the command line where its script is not on the path."""

from intact8.cli import main

if __name__ == "__main__":
    main()
