"""A library that takes as long to import as the test says."""

import os
import time

time.sleep(float(os.environ["LOCAL_SLOW_IMPORT_SECONDS"]))
