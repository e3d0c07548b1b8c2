"""The two kinds of failure rlnorm tells a user about. No other exception types live here.

Whatever else is raised is a bug of ours and keeps its traceback.
"""


class UserError(Exception):
    """A mistake that the user can mend: one sentence that names the key, the value and what
    would be right. The command line prints it without a traceback and exits with code 2."""


class WorkerError(Exception):
    """A worker (rollout, reward or learner) failed or did not answer in time: the message names
    the worker, what it was doing and what was saved. Exit code 1."""
