"""What the tests of prediction have is used here, too: runs that need no training."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "prediction"))
