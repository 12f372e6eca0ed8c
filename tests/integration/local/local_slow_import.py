"""A module whose import takes a configurable time."""

import os
import time

time.sleep(float(os.environ["LOCAL_SLOW_IMPORT_SECONDS"]))
