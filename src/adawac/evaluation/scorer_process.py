"""A process that scores cases: a line of JSON in, a line of JSON out, until its input ends.

`python -m adawac.evaluation.scorer_process` imports NumPy and SciPy, but neither torch nor the script that started it.
So it is up before a network is loaded, it does not care whether the parent holds threads or a GPU, and scripts need no
`if __name__ == "__main__":`. The prediction comes as a file, which the worker removes.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import scipy.spatial  # noqa: F401 (what scoring needs is loaded while the parent still loads its network)

from adawac.errors import AdawacError
from adawac.evaluation.case_scores import Rules, score_case


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then closes the input
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    path = Path(job["prediction"])
    try:
        prediction = np.load(path, allow_pickle=False)
        path.unlink()
        return score_case(job["store"], job["case"], prediction, Rules(**job["rules"])).to_dict()
    except AdawacError as error:
        return {"fault": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__} in case {job['case']}: {error}"}


if __name__ == "__main__":
    main()
