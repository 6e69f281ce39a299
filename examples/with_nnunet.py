"""AdaWAC inside nnU-Net: its commands plan, preprocess and train; the trainer is ours. A few iterations on a CPU.

Run it:  pip install 'adawac[nnunet]'
         python examples/with_nnunet.py  (two epochs of ten iterations; another number may follow)
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import adawac
from adawac.data.phantom.phantom_files import write_nifti_layout
from adawac.integrations.nnunet import trainer_folder

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 2
OWN_TRAINERS = Path(__file__).parent / "nnunet_trainers"

base = Path(tempfile.mkdtemp(prefix="adawac-nnunet-"))
folders = {f"nnUNet_{name}": base / name for name in ("raw", "preprocessed", "results")}
for folder in folders.values():
    folder.mkdir()
environment = os.environ | {name: str(folder) for name, folder in folders.items()}
environment |= {
    "nnUNet_extTrainer": os.pathsep.join([str(trainer_folder()), str(OWN_TRAINERS)]),  # where nnU-Net finds trainers
    "nnUNet_def_n_proc": "1",
    "nnUNet_n_proc_DA": "1",  # processes that augment
    "nnUNet_compile": "f",
    "BRIEF_EPOCHS": str(EPOCHS),
}


def run(command: str, *words: str) -> None:
    """Run a command of nnU-Net, as in a shell."""
    subprocess.run([Path(sys.executable).with_name(command), *words], env=environment, check=True)


# Your own data set in nnU-Net's raw layout goes here.
write_nifti_layout(folders["nnUNet_raw"] / "Dataset501_Phantom", 5, size=32, slices=(10, 12), sparse=0.5)

run("nnUNetv2_plan_and_preprocess", "-d", "501", "-c", "2d", "-np", "1", "-npfp", "1")

plans = folders["nnUNet_preprocessed"] / "Dataset501_Phantom" / "nnUNetPlans.json"
description = json.loads(plans.read_text())  # a narrow network and small batches, so that a laptop trains it
description["configurations"]["2d"]["batch_size"] = 4
network = description["configurations"]["2d"]["architecture"]["arch_kwargs"]
network["features_per_stage"] = [min(features, 64) // 4 for features in network["features_per_stage"]]
plans.write_text(json.dumps(description))

run("nnUNetv2_train", "501", "2d", "0", "-tr", "nnUNetTrainerAdaWACBrief", "-device", "cpu")

(folder,) = folders["nnUNet_results"].rglob("fold_0/adawac")  # the run folder; beta.csv lies beside it
for epoch in adawac.Run(folder).metrics:
    sparse, dense = epoch["beta_sparse"], epoch["beta_dense"]
    print(f"epoch {epoch['epoch']:2}: β label-sparse {sparse:.2f}, label-dense {dense:.2f}")
print(f"Look at it: adawac report {folder} --out report.html")
