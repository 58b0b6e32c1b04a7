"""`python -m softgen` is the `softgen` command."""

from softgen.cli import app

if __name__ == "__main__":
    app(prog_name="softgen")
