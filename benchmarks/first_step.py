"""`adawac train`, with its own options, up to its first step: prints when that came, and what came before."""

import json
import os
import sys
import time

from adawac.cli import display, run

moments = {}


class Leave(display.Display):
    """Notes when it is made, told of the start, and told of a step; then leaves."""

    def __init__(self, quiet=False):
        super().__init__(quiet)
        moments["imported"] = time.time()

    def start(self, config, run, steps):
        moments["set up"] = time.time()

    def step(self, epoch, step):
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        moments["stepped"] = time.time()
        print(json.dumps(moments), flush=True)
        os._exit(0)


display.Display = Leave
sys.exit(run(["train", *sys.argv[1:]]))
