"""Why a run cannot be trained on again."""


class CannotReplay(Exception):
    """Something of the recorded run is missing, or is not what it was. Names it."""
