"""AdaWAC's trainers, under the names that `nnUNetv2_train -tr` takes.

nnU-Net forgets what it imported from the folder that it searches; so the classes live outside, where worker processes
find them again.
"""

from adawac.integrations.nnunet.trainer import TRAINERS

globals().update(TRAINERS)
