"""What rlnorm tells a user about instead of showing a traceback. Nothing else lives here.

Whatever else is raised is a bug of ours and keeps its traceback.
"""


class UserError(Exception):
    """A mistake that the user can mend: one sentence that names the key, the value and what
    would be right. The command line prints it without a traceback and exits with code 2."""


class StoppedAtOnce(Exception):
    """The user asked twice to stop. Not a KeyboardInterrupt: the command-line library catches
    those and ends with its own exit code. Exit code 130."""


class WorkerError(Exception):
    """A worker (rollout, reward or learner) failed or did not answer in time: the message names
    the worker, what it was doing and what was saved. Exit code 1."""
