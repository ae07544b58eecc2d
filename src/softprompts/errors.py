"""The one exception that is the user's to mend."""


class UserError(Exception):
    """Bad input, told in one plain sentence that says what to do. The command line prints it and exits with 2."""
